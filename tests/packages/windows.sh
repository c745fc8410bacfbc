#!/usr/bin/env bash
# Unpacks the archive for Windows, compiles programs against it with MinGW and for Microsoft's linker, and runs them and the
# program kvq in Wine.
#   windows.sh ARCHIVE
set -euo pipefail

archive=$(realpath "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cc=x86_64-w64-mingw32-gcc-posix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

command -v $cc >/dev/null || { echo "skipped: there is no $cc"; exit 77; }
"$root/cmake/toolchains/wine.sh" --version >/dev/null 2>&1 || { echo "skipped: there is no Wine"; exit 77; }
python3 -m zipfile -e "$archive" "$work" || fail "the archive cannot be unpacked"
prefix=$(echo "$work"/kvq-*)
cd "$prefix"
for file in bin/kvq.dll lib/kvq.lib lib/libkvq.dll.a lib/libkvq.a lib/cmake/kvq/kvqConfig.cmake include/kvq.h \
  share/doc/kvq/LICENSE share/doc/kvq/THIRD_PARTY_NOTICES share/kvq/samples/c/embed.c; do
  [ -s $file ] || fail "there is no $file"
done

# Every Windows since 8 has these.
for file in bin/*; do
  needed=$(x86_64-w64-mingw32-objdump -p "$file" | awk '/DLL Name:/ {print tolower($3)}')
  [ -n "$needed" ] || fail "$file needs nothing at all, so this was not read well"
  others=$(awk '!/^(kernel32|msvcrt|advapi32|shell32|user32|api-ms-win-core-synch-l1-2-0)[.]dll$/' <<<"$needed" | xargs)
  [ -z "$others" ] || fail "$file needs $others"
done
"$root/tests/exports/run.sh" bin/kvq.dll

# run PROGRAM ARGUMENT...: where no runtime of a compiler is found
run() { WINEPATH='' "$root/cmake/toolchains/wine.sh" "$@" | tr -d '\r'; }

cd bin
$cc -std=c99 -Wall -Werror -I../include ../share/kvq/samples/c/embed.c -L../lib -lkvq -o embed.exe
printed=$(run ./embed.exe) || fail "the sample does not run: $printed"
[[ $printed == *bits* ]] || fail "the sample printed: $printed"
$cc -std=c99 -DKVQ_STATIC -I../include ../share/kvq/samples/c/embed.c ../lib/libkvq.a -static -lstdc++ -lsynchronization \
  -o static.exe
[ "$(run ./static.exe)" = "$printed" ] || fail "with libkvq.a the sample prints something else than '$printed'"
echo "ok: sample of the archive, with kvq.dll and with libkvq.a"

# Without a C library, since Microsoft's is not here: the program returns the API's version and 40,
# a status that Wine itself has not.
if command -v clang >/dev/null && command -v lld-link >/dev/null; then
  echo '#include <kvq.h>
int start(void) { return 40 + kvq_api_version(); }' >start.c
  clang --target=x86_64-pc-windows-msvc -ffreestanding -I../include -c start.c -o start.obj
  lld-link /nologo /entry:start /subsystem:console /nodefaultlib /out:start.exe start.obj ../lib/kvq.lib
  status=0
  run ./start.exe || status=$?
  expected=$((40 + $(sed -n 's/^#define KVQ_API_VERSION //p' ../include/kvq.h)))
  [ $status = $expected ] || fail "40 + kvq_api_version() with kvq.lib is $status, not $expected"
  echo "ok: kvq.lib"
else
  echo "skipped: kvq.lib, there is no clang or no lld-link"
fi

if [ -e kvq.exe ]; then
  version=$(run ./kvq.exe --version)
  [[ $version == *"$(sed -n 's/^Version: //p' ../lib/pkgconfig/kvq.pc)"* ]] || fail "kvq.exe --version printed: $version"
  echo "ok: kvq.exe --version"
else
  echo "skipped: kvq.exe, the archive is without it"
fi
