#!/usr/bin/env bash
# Builds llama.cpp with kvq and tests it against llama.cpp's own cache: test.sh FOLDER [FILTER]
# FOLDER and the environment are those of build.sh; PYTHON is a Python with what requirements.txt names. Exits with 77 and a
# reason if llama.cpp's sources cannot be had. The last line is "N passed, N failed".
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model=$here/../../models/demo
[ $# -ge 1 ] || { echo "test.sh FOLDER [FILTER]" >&2; exit 2; }
mkdir -p "$1/test"
folder=$(cd "$1" && pwd)
filter=${2:-}
python=${PYTHON:-python3}
passed=0
failed=0
result() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

# check NAME COMMAND...
check() {
  local name=$1
  shift
  if "$@"; then passed=$((passed + 1)); echo "ok      $name"; else failed=$((failed + 1)); echo "FAILED  $name"; fi
}

if ! compgen -G "$folder/llama_cpp_python-*.tar.gz" >/dev/null && ! python3 -m pip index versions llama-cpp-python >/dev/null 2>&1; then
  echo "skipped: llama.cpp's sources are not here and PyPI cannot be reached"
  exit 77
fi
if ! "$here/build.sh" "$folder" llama llama-simple llama-bench; then
  failed=1
  result
fi

# Places that are not as expected are an error that names them.
absent_anchor() {
  local copy=$folder/test/other name
  rm -rf "$copy"
  for name in src/CMakeLists.txt src/llama-model.cpp src/llama-graph.cpp src/llama-context.cpp common/arg.cpp \
    ggml/src/ggml-cuda/ggml-cuda.cu; do
    mkdir -p "$(dirname "$copy/$name")" && cp "$folder/source/$name.original" "$copy/$name" || return
  done
  sed -i 's/build_attn_mha(/build_attention(/' "$copy/src/llama-graph.cpp"
  ! "$here/edit.py" "$copy" 2>"$copy/log" && grep -q 'llama-graph.cpp.*build_attn_mha' "$copy/log" &&
    cmp -s "$copy/src/llama-model.cpp" "$folder/source/src/llama-model.cpp.original"
}
[ -n "$filter" ] || check "sources with another attention are refused, and nothing is edited" absent_anchor

export PYTHONPATH=$folder/source/gguf-py
"$python" "$here/make_gguf.py" llama "$folder/test/llama.gguf" "$model" || { failed=$((failed + 1)); result; }
for kind in windows sinks biases recurrent positions; do
  "$python" "$here/make_gguf.py" $kind "$folder/test/$kind.gguf" || { failed=$((failed + 1)); result; }
done

# What users write: the environment's policy, in a program that knows nothing of kvq.
benchmark() {
  KVQ_POLICY=$1 "$folder/bin/llama-bench" -m "$folder/test/llama.gguf" -p 64 -n 8 -r 1 -t 1 -v >"$folder/test/log" 2>&1
}
if [ -z "$filter" ]; then
  check "KVQ_POLICY chooses the cache" benchmark gs4
  check "and the log says so" grep -q 'kvq: version .* policy gs4' "$folder/test/log"
  check "a policy that is none fails" eval '! benchmark gs17'
fi

for name in device_nodes_test kvq_llama_test; do
  ${CXX:-c++} -std=c++17 -O1 -Wall -Wextra -Werror -I"$here/src" -isystem "$folder/source/include" \
    -isystem "$folder/source/ggml/include" -isystem "$folder/source/ggml/src" "$here/tests/$name.cpp" -o "$folder/test/$name" \
    -L"$folder/bin" -lllama -lggml -lggml-base -Wl,-rpath,"$folder/bin" -Wl,--allow-shlib-undefined ||
    { failed=$((failed + 1)); result; }
  log=$folder/test/log arguments=()
  [ $name = device_nodes_test ] || arguments=("$folder/test" ${filter:+"$filter"})
  "$folder/test/$name" "${arguments[@]}" | tee "$log"
  read -r p f < <(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
  passed=$((passed + ${p:-0}))
  failed=$((failed + ${f:-1}))
done
result
