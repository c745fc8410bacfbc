#!/usr/bin/env bash
# Counts the instructions that attention needs for a token, for processors that are not here: emulated, one query of 4 heads of
# 128 on one KV head. The optimized builds must be there: `scripts/test.sh cpu` and `scripts/test.sh arm64` make them.
#   count.sh [FORMAT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

formats=("$@")
[ $# -gt 0 ] || formats=(fp16 int4 int2 gs4 gs2 gt2)
few=512 # tokens, and twice as many: the difference is without what a call costs
calls=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Of a log that has every block's instructions, before it first runs, and a line whenever one runs.
count='
  /^0x/ && $NF !~ /^[0-9a-f][0-9a-f]$/ { # or the rest of a long instruction
    if (starts) { block = $1; gsub(/^0x0*|:$/, "", block); size[block] = 0; starts = 0 }
    ++size[block]
  }
  /^IN:/ { starts = 1 }
  /^Trace/ { split($4, field, "/"); block = field[2]; sub(/^0*/, "", block); total += size[block] }
  END { printf "%d\n", total }'

# instructions ARCHITECTURE PROGRAM ARGUMENTS...
instructions() {
  local architecture=$1
  shift
  "qemu-$architecture-static" -cpu max -d in_asm,exec,nochain -D "$work/log" "$@"
  awk "$count" "$work/log"
}

# row ARCHITECTURE ISA BUILD COMPILER
row() {
  local program="$work/attend-$1" format tokens before after counts
  "$4" -O2 -Iinclude tests/instructions/attend.c "$3/lib/libkvq.so" -Wl,-rpath,"$PWD/$3/lib" -o "$program"
  printf '%-14s' "$2"
  for format in "${formats[@]}"; do
    counts=()
    for tokens in $few $((2 * few)); do
      before=$(instructions "$1" "$program" "$2" "$format" "$tokens" 0)
      after=$(instructions "$1" "$program" "$2" "$format" "$tokens" $calls)
      counts+=($((after - before)))
    done
    printf '%8s' "$(((counts[1] - counts[0]) / few / calls))"
  done
  echo
}

printf '%-14s' set
printf '%8s' "${formats[@]}"
echo
row x86_64 avx2 build/release cc
row aarch64 neon build/linux-arm64 aarch64-linux-gnu-gcc
row aarch64 neon-dotprod build/linux-arm64 aarch64-linux-gnu-gcc
