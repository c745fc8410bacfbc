#!/usr/bin/env bash
# A statically linked program cannot load a plug-in and reports that.
#   static.sh STATIC_PROGRAM PLUGIN
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1" "$work/program"
cp "$2" "$work/libkvq_cuda.so" # one that would load in any other program

if readelf -lW "$work/program" | grep -q INTERP; then
  echo "FAILED: the program has a loader" >&2
  exit 1
fi
# refused [ARGUMENT...]
refused() {
  local status=0 output
  output=$("$work/program" "$@" 2>&1) || status=$?
  if [ $status -ne 1 ] || [[ $output != *"this program is linked statically"* ]]; then
    echo "FAILED: status $status: $output" >&2
    exit 1
  fi
  echo "ok: $output"
}

refused
refused "$work/libkvq_cuda.so"
