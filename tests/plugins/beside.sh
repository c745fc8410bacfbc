#!/usr/bin/env bash
# A plug-in is found next to the shared library, or next to a program with the static library.
#   beside.sh SHARED_LIBRARY STATIC_PROGRAM PLUGIN [KVQ_PROGRAM]
set -euo pipefail

library=$1
static_program=$2
plugin=$3
program=${4-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect NAME OUTPUT
expect() {
  [[ $2 == *"Pretend 0"* ]] || { echo "FAILED: $1: $2" >&2; exit 1; }
  echo "ok: $1"
}

mkdir "$work"/{bin,lib,static}
cp "$static_program" "$work/static/program"
if "$work/static/program" >"$work/out"; then
  echo "skipped: this machine has another plug-in, $(cat "$work/out")"
  exit 0
fi
cp "$plugin" "$work/static/libkvq_cuda.so"
cd "$work"
ln -s static/program link
expect "by its path" "$("$work/static/program" || true)"
expect "by a relative path" "$(static/program || true)"
expect "by a link" "$(./link || true)"
expect "by name" "$(PATH=$work/static:$PATH program || true)"

if [ -n "$program" ]; then
  cp "$program" "$work/bin/kvq"
  cp "$library" "$work/lib/libkvq.so.1"
  cp "$plugin" "$work/lib/libkvq_cuda.so"
  expect "beside the shared library" "$("$work/bin/kvq" info || true)"
fi
