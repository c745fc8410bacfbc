#!/usr/bin/env bash
# The public headers compile alone as C99 and C++, with every installed compiler.
set -euo pipefail

include=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/../../include
header=$include/kvq.h
strict=(-fsyntax-only -pedantic -Wall -Wextra -Werror)
compilers=0

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

[ $compilers -gt 0 ] || { echo "FAILED: no compiler found" >&2; exit 1; }
echo "ok: kvq.h and kvq.hpp compile alone with $compilers compilers"
