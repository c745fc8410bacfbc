#!/usr/bin/env bash
# Correctness and speed on a GPU. The machine that builds need not have one, and the one with the GPU needs no compiler.
#   gpu.sh build [DIR] [ARCHITECTURE]
#                        build with CUDA and collect in DIR (default build/gpu) what the other steps need; kernels are for
#                        GPUs of one compute capability (80, 90, ...), or for all supported ones, in twice the time
#   gpu.sh run [DIR]     on the machine with the GPU: tests, a model's perplexity on both devices, then times beside
#                        PyTorch's FlashAttention, in one table
#   gpu.sh check [DIR]   there: the conformance tests under every tool of compute-sanitizer
# Models on a GPU need cuBLAS 13, which is too large to collect: that of PyTorch's packages or the system's is used.
set -euo pipefail
script=$(readlink -f "${BASH_SOURCE[0]}")
root=$(dirname "$(dirname "$script")")
dir=build/gpu
architecture=
for argument in "${@:2}"; do
  if [[ $argument =~ ^[0-9]+$ ]]; then architecture=$argument; else dir=$argument; fi
done
programs=(kvq kvq_conformance kvq_cpp_tests kvq_tools_tests)
large=+8M # libraries of this size travel compressed

build() {
  cd "$root"
  scripts/setup.sh --test
  cmake --preset cuda -DKVQ_BUILD_TESTS=ON -DKVQ_BUILD_SAMPLES=ON \
    ${architecture:+"-DCMAKE_CUDA_ARCHITECTURES=$architecture-real"}
  cmake --build --preset cuda --parallel "$(nproc)" --target "${programs[@]/%kvq/kvq_cli}" kvq_cuda kvq_llama_cuda
  rm -rf "$dir"
  # As installed, so that the program finds everything.
  mkdir -p "$dir"/{bin,lib,share/kvq/models,share/tests}
  cp "${programs[@]/#/build/cuda/bin/}" "$dir/bin"
  cp build/cuda/lib/lib{kvq_cuda,kvq_llama_cuda}.so "$dir/lib"
  # Every library that the C runtime does not bring.
  ldd "${programs[@]/#/build/cuda/bin/}" | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' | xargs -I{} cp -L {} "$dir/lib"
  find "$dir/lib" -size "$large" -exec gzip -9 {} +
  cp -r models/demo "$dir/share/kvq/models"
  cp -r tests/data "$dir/share/tests"
  cp "$script" scripts/gpu_bench.py "$dir"
  du -sh "$dir"
}

# The folder of cuBLAS in Python's packages, if there is one.
cublas_folder() {
  python3 - <<'PYTHON'
import glob, os, sys

found = [path for folder in sys.path for path in glob.glob(folder + "/nvidia/*/lib/libcublasLt.so.13")]
print(os.path.dirname(found[0]) if found else "")
PYTHON
}

# perplexity DEVICE FORMAT
perplexity() {
  local result
  result=$(bin/kvq eval perplexity --model "$KVQ_TEST_MODEL" --text "$KVQ_TEST_MODEL/sample.txt" --windows 8 --json \
    --against none --device "$1" --kv "$2")
  python3 -c 'if True:
      import json, sys
      result = json.loads(sys.argv[1])
      print("%-4s on %-4s  perplexity %8.5f, %6.0f tokens per second" %
            (sys.argv[2], result["device"], result["perplexity"], result["tokens_per_second"]))' "$result" "$2"
}

# Libraries, and where tests find things.
enter() {
  cd "$dir"
  find lib -name '*.gz' -exec gunzip {} +
  local cublas
  cublas=$(cublas_folder)
  export LD_LIBRARY_PATH=$PWD/lib${cublas:+:$cublas}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  local model=$PWD/share/kvq/models/demo
  [ -d "$model" ] || model=$root/models/demo # where room is scarce, that of the source tree serves as well
  export KVQ_TEST_PROGRAM=$PWD/bin/kvq KVQ_TEST_MODEL=$model KVQ_TEST_SOURCE=$PWD/share
}

check() {
  enter
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== $tool"
    compute-sanitizer --tool "$tool" --num-cuda-barriers 65536 --error-exitcode 9 bin/kvq_conformance |
      grep -E '=====|Status'
  done
}

# attempt COMMAND...: what fails is told at the end, so that all else is seen.
failures=()
attempt() { "$@" || failures+=("$*"); }

run() {
  enter
  bin/kvq info
  attempt bin/kvq_conformance
  # It takes the device with it.
  attempt bin/kvq_conformance --no-skip --test-case='a device that stops working*'
  attempt bin/kvq_cpp_tests
  attempt bin/kvq_tools_tests
  for format in fp16 int8 int4 int2 gs4 gs2 gs1 gt2; do
    for device in cpu cuda; do attempt perplexity $device $format; done
  done
  attempt python3 gpu_bench.py bin/kvq
  [ ${#failures[@]} -eq 0 ] && echo "all passed" && return
  printf 'failed: %s\n' "${failures[@]}"
  return 1
}

case ${1:-} in
  build | run | check) "$1" ;;
  *) sed -n '2,/^set /s/^# \{0,1\}//p' "$script" >&2; exit 2 ;;
esac
