#!/usr/bin/env bash
# What the shared library shows to the world: exactly the functions listed in symbols.txt, and the stable SONAME.
#   run.sh LIBRARY
set -euo pipefail

library=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
header=$here/../../include/kvq.h
status=0

fail() {
  echo "FAILED: $*" >&2
  status=1
}

# compare NAME ACTUAL EXPECTED, two sorted lists
compare() {
  local symbol
  for symbol in $(comm -23 <(echo "$2") <(echo "$3")); do fail "$1: $symbol is extra"; done
  for symbol in $(comm -13 <(echo "$2") <(echo "$3")); do fail "$1: $symbol is missing"; done
}

export LC_ALL=C
expected=$(cat "$here/symbols.txt")
[ "$expected" = "$(sort -u <<<"$expected")" ] || fail "symbols.txt is not sorted"

# The version node itself is an absolute symbol.
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sort -u)
compare "exported symbols" "$exported" "$(sed 's/$/@@KVQ_1/' <<<"$expected")"

declared=$(tr '\n' ' ' <"$header" | grep -oE 'KVQ_API [^;(]*\(' | grep -oE '(kvq|qp)_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
compare "functions declared in kvq.h" "$declared" "$expected"

soname=$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')
[ "$soname" = libkvq.so.1 ] || fail "the SONAME is '$soname', not libkvq.so.1"

[ $status -ne 0 ] || echo "ok: $(wc -l <"$here/symbols.txt") symbols, SONAME $soname"
exit $status
