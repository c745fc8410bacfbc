#!/usr/bin/env bash
# Correctness and speed on a GPU. The machine that builds need not have one, and the one with the GPU needs no compiler.
#   gpu.sh build [DIR]   build with CUDA and collect in DIR (default build/gpu) what the other step needs
#   gpu.sh run [DIR]     on the machine with the GPU: tests, then times beside PyTorch's FlashAttention, in one table
set -euo pipefail
script=$(readlink -f "${BASH_SOURCE[0]}")
root=$(dirname "$(dirname "$script")")
dir=${2:-build/gpu}

build() {
  cd "$root"
  cmake --preset cuda
  cmake --build --preset cuda --parallel "$(nproc)"
  rm -rf "$dir"
  mkdir -p "$dir"
  cp build/cuda/bin/{kvq,kvq_conformance} build/cuda/lib/libkvq_cuda.so "$dir"
  # Every library that the C runtime does not bring.
  ldd build/cuda/bin/{kvq,kvq_conformance} | awk '$3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' | xargs -I{} cp -L {} "$dir"
  cp "$script" scripts/gpu_bench.py "$dir"
}

run() {
  cd "$dir"
  export LD_LIBRARY_PATH=$PWD${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  ./kvq info
  ./kvq_conformance
  python3 gpu_bench.py ./kvq
}

case ${1:-} in
  build | run) "$1" ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$script" >&2; exit 2 ;;
esac
