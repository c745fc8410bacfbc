#!/usr/bin/env bash
# The C snippets of README.md and of docs/weights.md, compiled as C and as C++ and run: readme.c declares their variables and
# checks their results.
#   readme.sh C_COMPILER CXX_COMPILER LIBRARY
set -euo pipefail

cc=$1
cxx=$2
library=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# block PAGE: its block of C
block() {
  [ "$(grep -c '^```c$' "$root/$1")" = 1 ] || fail "$1 has other blocks of C than the one that is tested here"
  awk '/^```c$/ {inside = 1; next} /^```/ {inside = 0} inside' "$root/$1"
}
block README.md >"$work/attend.inc"
block docs/weights.md >"$work/linear.inc"

strict=(-Wall -Wextra -Werror -O1 -I"$work" -I"$root/include" "$here/readme.c" -x none "$library" -Wl,-rpath,"$(dirname "$library")" -lm)
"$cc" -x c -std=c99 "${strict[@]}" -o "$work/as_c" || fail "the snippets are not C99"
"$cxx" -x c++ -std=c++11 "${strict[@]}" -o "$work/as_cpp" || fail "the snippets are not C++11"
for language in c cpp; do
  "$work/as_$language" >"$work/log" || fail "the snippets compute something else: $(cat "$work/log")"
  echo "ok: as $language: $(tr '\n' ';' <"$work/log")"
done
