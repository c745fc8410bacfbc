#!/usr/bin/env bash
# The README's C snippets, compiled as C and as C++ and run: readme.c declares their variables and checks their results.
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

# block N: the README's Nth block of C
block() { awk -v n="$1" '/^```c$/ {++found; inside = 1; next} /^```/ {inside = 0} inside && found == n' "$root/README.md"; }
[ "$(grep -c '^```c$' "$root/README.md")" = 2 ] || fail "the README has other blocks of C than the two that are tested here"
block 1 >"$work/attend.inc"
block 2 >"$work/linear.inc"

strict=(-Wall -Wextra -Werror -O1 -I"$work" -I"$root/include" "$here/readme.c" -x none "$library" -Wl,-rpath,"$(dirname "$library")" -lm)
"$cc" -x c -std=c99 "${strict[@]}" -o "$work/as_c" || fail "the snippets are not C99"
"$cxx" -x c++ -std=c++11 "${strict[@]}" -o "$work/as_cpp" || fail "the snippets are not C++11"
for language in c cpp; do
  "$work/as_$language" >"$work/log" || fail "the snippets compute something else: $(cat "$work/log")"
  echo "ok: as $language: $(tr '\n' ';' <"$work/log")"
done
