#!/usr/bin/env bash
# The public headers compile alone as C99 and C++, with every installed compiler, and are ASCII: other code pages than UTF-8
# read other bytes as they like (MSVC: warning C4819).
set -euo pipefail

include=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/../../include
header=$include/kvq.h
strict=(-fsyntax-only -pedantic -Wall -Wextra -Werror)
compilers=0

if LC_ALL=C grep -n '[^ -~]' "$header" "$include/kvq.hpp" >&2; then
  echo "FAILED: these lines are not ASCII" >&2
  exit 1
fi

for compiler in gcc clang; do
  command -v $compiler >/dev/null || continue
  # Implicit padding could not become a field later.
  $compiler -x c -std=c99 -Wpadded "${strict[@]}" - <<<"#include \"$header\""
  compilers=$((compilers + 1))
done
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || continue
  for standard in c++11 c++20; do
    $compiler -x c++ -std=$standard -DKVQ_EXPERIMENTAL "${strict[@]}" - <<<"#include \"$header\""
  done
  # Also without the experimental parts, and next to other code named kvq.
  for program in "" "#define KVQ_EXPERIMENTAL" $'#define KVQ_NAMESPACE kvq_client\nint kvq;'; do
    $compiler -x c++ -std=c++20 "${strict[@]}" -Wconversion -Wshadow - <<<"$program
#include \"$include/kvq.hpp\""
  done
  compilers=$((compilers + 1))
done

# MSVC's warnings, as far as Clang knows them. Freestanding: kvq.h needs no more than Clang's own headers, which kvq.hpp does.
if command -v clang >/dev/null; then
  for language in /TC /TP; do
    for definition in KVQ_STATIC KVQ_EXPERIMENTAL; do
      clang --driver-mode=cl --target=x86_64-pc-windows-msvc /clang:-ffreestanding /W4 /WX /Zs "/D$definition" \
        $language -- "$header"
    done
  done
  compilers=$((compilers + 1))
fi

[ $compilers -gt 0 ] || { echo "FAILED: no compiler found" >&2; exit 1; }
echo "ok: kvq.h and kvq.hpp compile alone with $compilers compilers"
