#!/usr/bin/env bash
# Installs a build into a fresh prefix and builds and runs programs in C and C++ against it: with the CMake package and
# with pkg-config, shared and static.
#   run.sh BUILD_DIR C_COMPILER CXX_COMPILER CMAKE_GENERATOR
set -euo pipefail

build=$1
cc=$2
cxx=$3
generator=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$work/first" >"$work/install.log" || fail "install: $(cat "$work/install.log")"
prefix=$work/moved # nothing may depend on the prefix given to the installation
mv "$work/first" "$prefix"

libdir=$(dirname "$(find "$prefix" -name libkvq.so.1)")
for file in include/kvq.h include/kvq.hpp share/doc/kvq/LICENSE; do
  [ -f "$prefix/$file" ] || fail "$file was not installed"
done

for module in libkvq_cuda.so libkvq_llama_cuda.so; do
  [ ! -e "$build/lib/$module" ] || [ -f "$libdir/$module" ] || fail "$module was not installed beside the library"
done

# check_run NAME shared|static PROGRAM
check_run() {
  local needed
  needed=$(objdump -p "$3" | awk '$1 == "NEEDED" {print $2}')
  if [ "$2" = shared ]; then
    grep -qx 'libkvq\.so\.1' <<<"$needed" || fail "$1: the program does not use libkvq.so.1"
  elif grep -q libkvq <<<"$needed"; then
    fail "$1: the program uses the shared library"
  fi
  LD_LIBRARY_PATH=$libdir "$3" || fail "$1: the program failed"
  echo "ok: $1"
}

for project in consumer consumer_cpp; do
  for linkage in shared static; do
    name="CMake package, $project, $linkage"
    made=$work/$project/$linkage
    cmake -S "$here/$project" -B "$made" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
      --no-warn-unused-cli -DCMAKE_PREFIX_PATH="$prefix" -DKVQ_LINKAGE="$linkage" >"$work/log" 2>&1 &&
      cmake --build "$made" >>"$work/log" 2>&1 || fail "$name: $(cat "$work/log")"
    check_run "$name" "$linkage" "$made/consumer"
  done
done

export PKG_CONFIG_PATH=$libdir/pkgconfig
compile=("$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror "$here/consumer/consumer.c")
read -ra flags <<<"$(pkg-config --cflags --libs kvq)"
"${compile[@]}" -o "$work/pc_shared" "${flags[@]}" -lm || fail "pkg-config, shared: does not compile"
check_run "pkg-config, shared" shared "$work/pc_shared"

read -ra flags <<<"$(pkg-config --static --cflags --libs kvq)"
# Both libraries lie in one folder, where -lkvq would take the shared one.
"${compile[@]}" -o "$work/pc_static" "${flags[@]/#-lkvq/-l:libkvq.a}" || fail "pkg-config, static: does not compile"
check_run "pkg-config, static" static "$work/pc_static"

if [ -x "$prefix/bin/kvq" ]; then
  "$prefix/bin/kvq" info >/dev/null || fail "the installed program does not run"
  [ -f "$prefix/share/kvq/models/demo/model.safetensors" ] || fail "the demo model was not installed"
  echo "ok: installed program"
fi
