#!/usr/bin/env bash
# Time of a decoding step with llama.cpp's caches and kvq's: bench.sh FOLDER MODEL TOKENS [THREADS [CACHE...]]
# FOLDER is what build.sh built, MODEL a GGUF file, TOKENS how many are in the cache. A CACHE is f16, q8_0, q4_0 (flash
# attention on), f16-plain (off), or a policy of kvq. Prints tokens/s of the best of six runs
# (others use the machine, and threads that wait for one another spin), the ratio to the first, and the MiB of keys and values.
set -euo pipefail
folder=$1 model=$2 tokens=$3 threads=${4:-2}
shift $(($# < 4 ? $# : 4))
[ $# -gt 0 ] || set -- f16 f16-plain q8_0 q4_0 int8 int4+hadamard gs4 gs2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%-16s %10s %8s %10s\n' cache 'tokens/s' 'of f16' MiB
base=
for cache in "$@"; do
  policy=none
  options=(-fa 1)
  case $cache in
    f16 | q8_0 | q4_0) options+=(-ctk "$cache" -ctv "$cache") ;;
    f16-plain) options=(-fa 0) ;;
    *) policy=$cache ;;
  esac
  speed=$(KVQ_POLICY=$policy "$folder/bin/llama-bench" -m "$model" -t "$threads" -p 0 -n 8 -r 6 -d "$tokens" -v -o jsonl \
    "${options[@]}" 2>"$log" | sed -n 's/.*"samples_ts": \[\([^]]*\)\].*/\1/p' | tr -d ' ' | tr , '\n' | sort -g | tail -n 1)
  size=$(sed -n -e 's/.*llama_kv_cache: size = *\([0-9.]*\) MiB.*/\1/p' -e 's/.*kvq: pages \([0-9.]*\) MiB.*/\1/p' "$log" |
    tail -n 1)
  base=${base:-$speed}
  awk -v c="$cache" -v s="$speed" -v b="$base" -v m="$size" 'BEGIN { printf "%-16s %10.2f %8.2f %10.1f\n", c, s, s / b, m }'
done
