#!/usr/bin/env bash
# Processor time of a decoding step with llama.cpp's caches and kvq's: bench.sh FOLDER MODEL TOKENS [CACHE...]
# FOLDER is what build.sh has built, MODEL a GGUF file (make_gguf.py timing), TOKENS how many are in the cache. A CACHE is f16,
# q8_0 or q4_0 with flash attention, f16-plain without, or a policy of kvq. One thread, milliseconds. Where kvq is, KVQ_LIBRARY
# and KVQ_INCLUDE say as for build.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1 model=$2 tokens=$3
shift 3
[ $# -gt 0 ] || set -- f16 f16-plain q8_0 q4_0 int8 int4+hadamard gs4 gs2
library=$(realpath "${KVQ_LIBRARY:-$here/../../build/release/lib/libkvq.so}")
${CXX:-c++} -std=c++17 -O2 -I"${KVQ_INCLUDE:-$here/../../include}" -I"$here/src" -I"$folder/source/include" -I"$folder/source/ggml/include" \
  "$here/tests/decode_time.cpp" -o "$folder/decode_time" -L"$folder/bin" -lllama -lggml -lggml-base "$library" \
  -Wl,-rpath,"$folder/bin:$(dirname "$library")" -Wl,--allow-shlib-undefined
printf '%-16s %8s %8s %8s\n' cache step empty MiB
for cache in "$@"; do "$folder/decode_time" "$model" "$tokens" "$cache"; done
