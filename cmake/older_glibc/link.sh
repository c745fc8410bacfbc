#!/usr/bin/env bash
# Links what GCC has compiled for Linux so that it runs with an older C library than this machine's: by zig, which knows
# what each version of glibc had, with GCC's C++ library inside and its own functions, which ask the processor what it has.
#   link.sh VERSION CXX_COMPILER ARGUMENT...
set -euo pipefail

version=$1
cxx=$2
shift 2
file() { "$cxx" "-print-file-name=$1"; }

begin=()
end=()
if [[ " $* " == *" -shared "* ]]; then # these destroy static objects when a process unloads the library
  begin=("$(file crtbeginS.o)")
  end=("$(file crtendS.o)")
fi
# Optimized, or zig would add its own checks of undefined behaviour, with what reports them.
exec python3 -m ziglang c++ -target "$("$cxx" -dumpmachine).$version" -O2 -fno-sanitize=undefined -nostdlib++ \
  "${begin[@]}" "$@" "$(dirname "${BASH_SOURCE[0]}")/newer.c" "$(file libstdc++.a)" "$(file libgcc.a)" \
  -Wl,--allow-shlib-undefined "$(file libgcc_s.so.1)" "${end[@]}"
