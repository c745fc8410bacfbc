#!/usr/bin/env bash
# kvq.hpp as users see it: the README's program, the sample, the cost of calls, an older library, and a check that tests
# call every method.
#   cpp.sh CXX_COMPILER C_COMPILER LIBRARY
set -euo pipefail

cxx=$1
cc=$2
library=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strict=(-O2 -Wall -Wextra -Werror -I"$root/include")
linked=("$library" -Wl,-rpath,"$(dirname "$library")")

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

sed -n '/^```cpp$/,/^```$/{/^```/d;p}' "$root/bindings/cpp/README.md" >"$work/first.cpp"
expected=$(sed -n 's/^It prints `\(.*\)`\..*/\1/p' "$root/bindings/cpp/README.md")
"$cxx" -std=c++20 "${strict[@]}" -Wconversion "$work/first.cpp" "${linked[@]}" -o "$work/first"
[ "$("$work/first")" = "$expected" ] || fail "the README's program prints $("$work/first")"
echo "ok: the README's program"

"$cxx" -std=c++20 "${strict[@]}" "$root/samples/cpp/embed.cpp" "${linked[@]}" -o "$work/embed_cpp"
"$cc" -std=c99 "${strict[@]}" "$root/samples/c/embed.c" "${linked[@]}" -o "$work/embed_c"
[ "$("$work/embed_cpp")" = "$("$work/embed_c")" ] || fail "embed gives $("$work/embed_cpp") and in C $("$work/embed_c")"
echo "ok: embed: $("$work/embed_c")"

"$cxx" -std=c++20 "${strict[@]}" "$root/bindings/cpp/call_cost.cpp" "${linked[@]}" -o "$work/cost_cpp"
"$cc" -std=c99 "${strict[@]}" "$root/bindings/c/call_cost.c" "${linked[@]}" -o "$work/cost_c"
for language in c cpp; do
  line=$("$work/cost_$language")
  [[ $line =~ ^append\ [0-9]+\ attend\ [0-9]+$ ]] || fail "call_cost in $language prints $line"
  echo "ok: call_cost in $language: $line"
done

"$cxx" -std=c++20 "${strict[@]}" "$here/cpp/old_library.cpp" -o "$work/old_library" # without the library
"$work/old_library" || fail "a library older than the header"
echo "ok: a library older than the header is refused"

python3 "$here/cpp/methods.py" "$root"
