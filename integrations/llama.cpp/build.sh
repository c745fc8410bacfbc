#!/usr/bin/env bash
# Builds llama.cpp with kvq as a KV cache: build.sh FOLDER [TARGET...]
# FOLDER, made if need be, receives the sources (source/), what is built (bin/) and the download. Needs python3 with pip, cmake,
# a C++ compiler, and kvq as it is installed or built:
#   KVQ_PREFIX    where `cmake --install` has put it; or both of
#   KVQ_LIBRARY   the file libkvq.so, and
#   KVQ_INCLUDE   the folder of kvq.h
# Without these, build/release of this repository. KVQ_CUDA=1 builds for NVIDIA GPUs too, with nvcc; libkvq_cuda.so is then
# beside libkvq.so, by default that of build/cuda. CMAKE_ARGUMENTS are given to llama.cpp's cmake. TARGETs are those of
# llama.cpp; by default the library, llama-simple, llama-completion, llama-bench and llama-perplexity.
set -euo pipefail

version=0.3.36 # of llama-cpp-python on PyPI, whose source archive has llama.cpp's
checksum=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
archive=llama_cpp_python-$version.tar.gz

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
fail() {
  echo "build.sh: $*" >&2
  exit 1
}
[ $# -ge 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
case "$folder/" in "$root/integrations/"* | "$root/" | "$root/src/"*) fail "$folder is among this repository's sources" ;; esac
[ $# -gt 0 ] || set -- llama llama-simple llama-completion llama-bench llama-perplexity

preset=release cuda=OFF
[ "${KVQ_CUDA:-0}" = 0 ] || preset=cuda cuda=ON
library=${KVQ_LIBRARY:-}
include=${KVQ_INCLUDE:-}
if [ -n "${KVQ_PREFIX:-}" ]; then
  library=$(find "$KVQ_PREFIX" -name libkvq.so | head -n 1)
  include=$KVQ_PREFIX/include
fi
library=$(realpath "${library:-$root/build/$preset/lib/libkvq.so}")
include=$(realpath "${include:-$root/include}")
[ -f "$library" ] || fail "no library $library: build kvq, or set KVQ_PREFIX"
[ $cuda = OFF ] || [ -f "$(dirname "$library")/libkvq_cuda.so" ] || fail "no libkvq_cuda.so beside $library"
[ -f "$include/kvq.h" ] || fail "no $include/kvq.h"

if [ ! -f "$folder/$archive" ]; then
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    --dest "$folder" "llama-cpp-python==$version" || fail "cannot download llama-cpp-python $version from PyPI"
fi
echo "$checksum  $folder/$archive" | sha256sum --check --quiet || fail "$archive is not the one that is expected"

if [ ! -f "$folder/source/.unpacked" ]; then
  rm -rf "$folder/source"
  mkdir "$folder/source"
  tar -xzf "$folder/$archive" -C "$folder/source" --strip-components 3 "llama_cpp_python-$version/vendor/llama.cpp"
  rm -f "$folder/source/.git" # names a repository that the archive has not
  touch "$folder/source/.unpacked"
fi
"$here/edit.py" "$folder/source"

generator=()
[ -f "$folder/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
launcher=()
! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# shellcheck disable=SC2086
cmake -S "$folder/source" -B "$folder" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_OPENSSL=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF "${launcher[@]}" -DKVQ_LLAMA_DIR="$here/src" -DKVQ_INCLUDE_DIR="$include" \
  -DKVQ_LIBRARY="$library" -DGGML_CUDA=$cuda ${CMAKE_ARGUMENTS:-}
cmake --build "$folder" --parallel "$(nproc)" --target "$@"
