#!/usr/bin/env bash
# Installs a build into a fresh prefix and builds and runs programs in C and C++ against it: with the CMake package and
# with pkg-config, to the shared library, to the static one, and with no shared library at all.
#   run.sh BUILD_DIR C_COMPILER CMAKE_GENERATOR
set -euo pipefail

build=$1
cc=$2
generator=$3
cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")
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
for file in include/kvq.h include/kvq.hpp share/doc/kvq/LICENSE share/doc/kvq/THIRD_PARTY_NOTICES \
  share/kvq/kvq-api.json share/kvq/policies/h2o.yaml share/kvq/samples/c/embed.c; do
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

# The API only grows within a major version, so a later minor version serves programs that ask for an earlier one.
later=$work/later
cp -r "$prefix" "$later"
version_file=$(find "$later" -name kvqConfigVersion.cmake)
version=$(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")$/\1/p' "$version_file")
major=${version%%.*}
sed -i "s/\"${version//./\\.}\"/\"$major.7.3\"/" "$version_file"
# asks VERSION found|refused: for a package of version MAJOR.7.3
asks() {
  local answer=refused
  mkdir -p "$work/asks"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(asks LANGUAGES C)\nfind_package(kvq %s REQUIRED)\n' "$1" \
    >"$work/asks/CMakeLists.txt"
  ! cmake -S "$work/asks" -B "$work/asks/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$later" \
    >"$work/log" 2>&1 || answer=found
  [ "$answer" = "$2" ] || fail "find_package(kvq $1) with version $major.7.3 is $answer: $(cat "$work/log")"
  [ "$answer" = found ] || grep -qF "kvqConfig.cmake, version: $major.7.3" "$work/log" ||
    fail "find_package(kvq $1) is refused for another reason: $(cat "$work/log")"
  rm -r "$work/asks"
}
asks "$major.0" found
asks "$major.6" found
asks "$major" found
asks "$major.8" refused
asks "$((major + 1)).0" refused
asks "$((major - 1)).9" refused
echo "ok: versions of the CMake package"

export PKG_CONFIG_PATH=$libdir/pkgconfig
compile=("$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror "$here/consumer/consumer.c")
read -ra flags <<<"$(pkg-config --cflags --libs kvq)"
"${compile[@]}" -o "$work/pc_shared" "${flags[@]}" -lm || fail "pkg-config, shared: does not compile"
check_run "pkg-config, shared" shared "$work/pc_shared"

read -ra flags <<<"$(pkg-config --static --cflags --libs kvq)"
# Both libraries are in one folder, where -lkvq links the shared one.
"${compile[@]}" -o "$work/pc_static" "${flags[@]/#-lkvq/-l:libkvq.a}" || fail "pkg-config, static: does not compile"
check_run "pkg-config, static" static "$work/pc_static"

# The installed sample; its checksum must equal that of the program without a loader.
sample=("$cc" -std=c99 "$prefix/share/kvq/samples/c/embed.c")
read -ra shared <<<"$(pkg-config --cflags --libs kvq)"
"${sample[@]}" -o "$work/embed" "${shared[@]}" || fail "the sample does not compile"
expected=$(LD_LIBRARY_PATH=$libdir "$work/embed") || fail "the sample failed"
if echo "int main(void) { return 0; }" | "$cc" -static -x c -o "$work/can_be_static" - 2>"$work/log"; then
  "${sample[@]}" -static -o "$work/embed_static" "${flags[@]}" 2>"$work/log" || fail "-static: $(cat "$work/log")"
  readelf -lW "$work/embed_static" | grep -q INTERP && fail "-static: the program has a loader"
  [ "$("$work/embed_static")" = "$expected" ] || fail "-static: the sample prints something else than '$expected'"
  echo "ok: pkg-config, -static"
else
  echo "skipped: -static, for which this machine has no C library"
fi

# The samples compile and run with the commands in their first comments; graph.c needs CUDA.
cc() { command "$cc" -Wall -Wextra -Wpedantic -Werror "$@"; }
c++() { command "$cxx" -Wall -Wextra -Wpedantic -Werror "$@"; }
cp -r "$prefix/share/kvq/samples" "$work/samples"
for source in "$work"/samples/c*/*.c*; do
  [ "${source##*/}" != graph.c ] || continue
  lines=$(sed -nE '1,10s/^( \*|\/\/)   ((cc|c\+\+|\.\/).*)/\2/p' "$source")
  [ "$(wc -l <<<"$lines")" = 2 ] || fail "${source##*/} does not say how to compile and run it"
  lines=${lines/$'\n'/ && }
  (cd "${source%/*}" && eval "${lines/FILE/saved}") >"$work/log" 2>&1 || fail "$lines: $(cat "$work/log")"
done
echo "ok: installed samples"

# Installs each component alone; together they are everything.
components=(runtime development program models samples)
for component in "${components[@]}"; do
  cmake --install "$build" --prefix "$work/parts/$component" --component "$component" >"$work/install.log" ||
    fail "component $component: $(cat "$work/install.log")"
done
files() { (cd "$1" && find . ! -type d | LC_ALL=C sort); }
for component in "${components[@]}"; do
  [ ! -d "$work/parts/$component" ] || files "$work/parts/$component"
done | LC_ALL=C sort >"$work/of_parts"
files "$prefix" | diff - "$work/of_parts" >"$work/log" || fail "components and the whole differ: $(cat "$work/log")"
files "$work/parts/runtime" | grep -qE '\.(h|a|pc|cmake)$|libkvq\.so$' && fail "component runtime has files for development"
echo "ok: components"

if [ -x "$prefix/bin/kvq" ]; then
  "$prefix/bin/kvq" info >/dev/null || fail "the installed program does not run"
  [ -f "$prefix/share/kvq/models/demo/model.safetensors" ] || fail "the demo model was not installed"
  for file in man/man1/kvq.1 bash-completion/completions/kvq fish/vendor_completions.d/kvq.fish; do
    [ -s "$prefix/share/$file" ] || fail "share/$file was not installed"
  done
  [ -n "$(find "$prefix/share/zsh" -name _kvq)" ] || fail "zsh's completion was not installed"
  echo "ok: installed program"
fi
