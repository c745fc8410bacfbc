#!/usr/bin/env bash
# The library and the named files need only the C and C++ runtimes; a C program runs with these and the library.
#   standalone.sh PROGRAM LIBRARY [FILE]...
set -euo pipefail

program=$1
library=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

needs() { objdump -p "$1" | awk '$1 == "NEEDED" {print $2}'; }

soname=$(basename "$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')")
runtimes='(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc[+][+]|ld-linux[-a-z0-9_]*)[.]so([.][0-9]+)*'
for file in "${@:2}"; do
  needed=$(needs "$file")
  [ -n "$needed" ] || fail "$(basename "$file") needs nothing at all, so this was not read well"
  allowed=$runtimes
  [ "$file" = "$library" ] || allowed+="|${soname//./[.]}"
  others=$(awk -v allowed="^($allowed)$" '$0 !~ allowed' <<<"$needed" | xargs)
  [ -z "$others" ] || fail "$(basename "$file") needs $others"
done

# Uses a folder with nothing else, and no other search path.
cp "$library" "$work/$soname"
loader=$(readelf -lW "$program" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
LD_LIBRARY_PATH=$work ldd "$program" | awk '$2 == "=>" {print $3}' | grep -v "^$work/" | xargs -I{} cp {} "$work/"
output=$("$loader" --inhibit-cache --library-path "$work" "$program") || fail "$(basename "$program") does not run: $output"
grep -q bits <<<"$output" || fail "$(basename "$program") printed: $output"

echo "ok: $((${#@} - 1)) files need no more than $(needs "$library" | xargs)"
