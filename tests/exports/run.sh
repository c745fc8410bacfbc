#!/usr/bin/env bash
# The shared library exports exactly the functions that kvq.h declares (symbols.txt, generated from it), and has the right name.
#   run.sh LIBRARY
set -euo pipefail

library=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
status=0

fail() {
  echo "FAILED: $*" >&2
  status=1
}

# compare NAME ACTUAL EXPECTED: compares two sorted lists
compare() {
  local symbol
  for symbol in $(comm -23 <(echo "$2") <(echo "$3")); do fail "$1: $symbol is extra"; done
  for symbol in $(comm -13 <(echo "$2") <(echo "$3")); do fail "$1: $symbol is missing"; done
}

export LC_ALL=C
expected=$(cat "$here/symbols.txt")
if [[ $library == *.dll ]]; then # whose names have no versions
  right=kvq.dll
  table=$(x86_64-w64-mingw32-objdump -p "$library")
  exported=$(awk '/^\[Ordinal\/Name Pointer\]/ {on = 1; next} on && !NF {exit} on {print $NF}' <<<"$table" | sort -u)
  expected=$(sed 's/@@.*//' <<<"$expected")
  name=$(awk '$1 == "Name" && NF == 3 {print $3}' <<<"$table")
else
  right=libkvq.so.1
  # The version nodes themselves are absolute symbols.
  exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sort -u)
  name=$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')
fi
compare "exported symbols" "$exported" "$expected"
[ "$name" = $right ] || fail "it calls itself '$name', not $right"

[ $status -ne 0 ] || echo "ok: $(wc -l <"$here/symbols.txt") symbols of $name"
exit $status
