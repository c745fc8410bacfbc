#!/usr/bin/env bash
# Puts what kvq needs of others, for a system that Debian has no such packages for, into build/SYSTEM-libraries, where the
# presets for it look: headers of Debian's packages, and libraries compiled from Debian's sources. Says nothing when they are
# there. Status 77 says that sources cannot be had, for a reason that it prints. Compilers and emulators: setup.sh --SYSTEM.
#   foreign_libraries.sh windows [--program] | i686 | wasm
#     --program  also what the kvq program needs; OpenBLAS takes minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

system=${1:-}
case $system${2:+ $2} in
  windows | windows\ --program) cross=x86_64-w64-mingw32- cc=(x86_64-w64-mingw32-gcc-posix) ;;
  i686) cross=i686-linux-gnu- cc=(i686-linux-gnu-gcc -fPIC) ;;
  wasm) cross=em cc=(emcc) ;;
  *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
libraries=$PWD/build/$system-libraries
jobs=$(nproc)
mkdir -p "$libraries"/{include,lib/cmake,share/cmake,source}

# Copies, since those in /usr/include are beside this system's own headers.
if [ ! -e "$libraries/include/hwy" ]; then
  cp -RL /usr/include/{eigen3,nlohmann,doctest} "$libraries/include"
  cp -RL /usr/share/eigen3 "$libraries/share"
  cp -RL /usr/share/cmake/nlohmann_json "$libraries/share/cmake"
  cp -RL /usr/lib/cmake/doctest "$libraries/lib/cmake"
  sed -i 's|^set(_IMPORT_PREFIX "/usr")|set(_IMPORT_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../..")|' \
    "$libraries"/lib/cmake/doctest/*.cmake
  cp -RL /usr/include/hwy "$libraries/include"
fi
cd "$libraries/source"

# apt downloads sources only where its lists name some, so it gets lists of its own.
apt() {
  apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$PWD/parts" -o "Dir::State::Lists=$PWD/lists" \
    -o APT::Sandbox::User= "$@" >&2
}

skip() {
  echo "skipped: $1"
  exit 77
}

# download PACKAGE: its source as it was released, in the folder PACKAGE. That of the newest version, or of the release where a
# mirror has no others.
download() {
  local package=$1 release
  if [ ! -e parts ]; then
    [ -e /etc/apt/sources.list.d/debian.sources ] || skip "there is no /etc/apt/sources.list.d/debian.sources to find sources with"
    mkdir -p lists/partial new
    sed 's/^Types: .*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >new/debian.sources
    mv new parts
    apt update || { rm -r parts; skip "apt cannot read Debian's lists of sources"; }
  fi
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  apt source --download-only "$package" || apt source --download-only "$package/$release" ||
    skip "apt cannot download the source of $package"
  rm -rf "$package"
  mkdir "$package"
  tar -xf "$package"_*.orig.tar.* -C "$package" --strip-components=1
}

# archive NAME SOURCES_AND_OPTIONS...: a static library of these sources of the folder that is current.
archive() {
  local name=$1 source options=() sources=()
  shift
  for source; do
    case $source in *.c) sources+=("$source") ;; *) options+=("$source") ;; esac
  done
  printf '%s\n' "${sources[@]}" |
    xargs -P "$jobs" -I '{}' sh -c '"$@" -c "$0" -o "$(basename "$0" .c).o"' '{}' "${cc[@]}" -O2 "${options[@]}"
  "${cross}ar" rcs "$name" ./*.o
  mv "$name" "$libraries/lib"
}

libyaml() {
  local version strings
  download libyaml
  cd libyaml
  version=$(sed -n 's/^set *(YAML_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\))/-DYAML_VERSION_\1=\2/p' CMakeLists.txt)
  strings=$(sed -n 's/^set *(YAML_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\))/\2/p' CMakeLists.txt | paste -sd.)
  # shellcheck disable=SC2086
  archive libyaml.a -DYAML_DECLARE_STATIC $version "-DYAML_VERSION_STRING=\"$strings\"" -Iinclude src/*.c
  cp include/yaml.h "$libraries/include"
}

utf8proc() {
  download utf8proc
  cd utf8proc
  archive libutf8proc.a -DUTF8PROC_STATIC utf8proc.c
  cp utf8proc.h "$libraries/include"
}

pcre2() {
  download pcre2
  cmake -S pcre2 -B pcre2/build -G Ninja "-DCMAKE_TOOLCHAIN_FILE=$libraries/../../cmake/toolchains/windows-mingw.cmake" \
    -DCMAKE_BUILD_TYPE=Release "-DCMAKE_INSTALL_PREFIX=$libraries" -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF \
    -DPCRE2_SUPPORT_JIT=ON -DPCRE2_SUPPORT_UNICODE=ON >&2
  cmake --build pcre2/build --parallel "$jobs" --target pcre2-8-static >&2
  cp pcre2/build/libpcre2-8.a "$libraries/lib"
  cp pcre2/build/pcre2.h "$libraries/include"
}

# Products of single precision alone, with kernels for processors with SSE3, AVX2 and AVX-512. Windows' stacks are aligned to
# 16 bytes only (GCC PR 54412).
openblas() {
  download openblas
  make -C openblas -s -j"$jobs" libs netlib CC="${cc[*]} -Wa,-muse-unaligned-vector-move" AR=${cross}ar RANLIB=${cross}ranlib \
    HOSTCC=gcc OSNAME=WINNT CROSS=1 CROSS_SUFFIX=$cross BINARY=64 TARGET=PRESCOTT DYNAMIC_ARCH=1 DYNAMIC_LIST="HASWELL SKYLAKEX" \
    NOFORTRAN=1 NO_LAPACK=1 NO_LAPACKE=1 NO_SHARED=1 USE_THREAD=0 USE_LOCKING=1 NUM_THREADS=64 BUILD_SINGLE=1 >&2
  make -C openblas -s install PREFIX="$libraries" NO_SHARED=1 >&2
}

# need FILE FUNCTION: FUNCTION makes this file, in a shell of its own.
need() {
  [ -e "$libraries/lib/$1" ] || ("$2")
}

need libyaml.a libyaml
[ "${2:-}" != --program ] || {
  cp -RL /usr/include/CLI "$libraries/include"
  cp -RL /usr/share/cmake/CLI11 "$libraries/share/cmake"
  need libutf8proc.a utf8proc
  need libpcre2-8.a pcre2
  need libopenblas.a openblas
}
