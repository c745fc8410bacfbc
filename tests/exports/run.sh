#!/usr/bin/env bash
# The shared library exports exactly the functions that kvq.h declares (symbols.txt, generated from it), and has the
# right SONAME.
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
# The version nodes themselves are absolute symbols.
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sort -u)
compare "exported symbols" "$exported" "$(cat "$here/symbols.txt")"

soname=$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')
[ "$soname" = libkvq.so.1 ] || fail "the SONAME is '$soname', not libkvq.so.1"

[ $status -ne 0 ] || echo "ok: $(wc -l <"$here/symbols.txt") symbols, SONAME $soname"
exit $status
