#!/usr/bin/env bash
# Unpacks the packages for Linux on ARM64, compiles a sample against each, and runs it in an emulator of the processor.
#   arm64.sh FOLDER
set -euo pipefail

folder=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cc=aarch64-linux-gnu-gcc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

for tool in $cc qemu-aarch64-static dpkg-deb; do
  command -v $tool >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done

# field PACKAGE NAME
field() { dpkg-deb -f "$folder/$1"_*_arm64.deb "$2"; }
for package in libkvq1 libkvq-dev; do
  [ "$(field $package Architecture)" = arm64 ] || fail "$package is for $(field $package Architecture)"
  dpkg-deb -x "$folder/$package"_*_arm64.deb "$work/debian"
done
depends=$(field libkvq1 Depends)
for name in libc6 libgcc-s1 'libstdc++6' libyaml-0-2; do
  [[ ", $depends," == *", $name"[\ ,]* ]] || fail "libkvq1 depends on: $depends"
done
mkdir "$work/archive"
tar -xf "$folder"/kvq-*-linux-aarch64.tar.gz -C "$work/archive" --strip-components=1
echo "ok: libkvq1 depends on $depends"

# check NAME INCLUDE_DIR LIBRARY_DIR: the sample with both libraries in it
check() {
  local name=$1 include=$2 libraries=$3 shared static
  "$root/tests/exports/run.sh" "$libraries/libkvq.so.1"
  $cc -std=c99 -Wall -Werror -I"$include" "$root/samples/c/embed.c" -L"$libraries" -lkvq -o "$work/shared"
  shared=$(qemu-aarch64-static -E LD_LIBRARY_PATH="$libraries" "$work/shared") || fail "$name: the sample does not run"
  [[ $shared == *bits* ]] || fail "$name: the sample printed: $shared"
  $cc -std=c99 -I"$include" "$root/samples/c/embed.c" "$libraries/libkvq.a" -lyaml -lstdc++ -lm -o "$work/static"
  static=$(qemu-aarch64-static "$work/static") || fail "$name: the sample with libkvq.a does not run"
  [ "$static" = "$shared" ] || fail "$name: with libkvq.a the sample prints something else than '$shared'"
  echo "ok: sample with the libraries of $name"
}
check "the Debian packages" "$work/debian/usr/include" "$work/debian/usr/lib/aarch64-linux-gnu"
check "the archive" "$work/archive/include" "$work/archive/lib"
