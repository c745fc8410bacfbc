# Common to the test.sh of all languages, which source it with their arguments: PREFIX, where kvq is installed, and BUILD_DIR
# for outputs (build/bindings/LANGUAGE). The last line of a test.sh is "N passed, N failed"; with status 77, "skipped: REASON".
# shellcheck shell=bash
set -uo pipefail
[ $# -ge 1 ] || { echo "usage: $0 PREFIX [BUILD_DIR]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=$(cd "$1" && pwd) || exit 2
build=${2:-$root/build/bindings/$(basename "$here")}
mkdir -p "$build" && build=$(cd "$build" && pwd) || exit 2
description=$(find "$prefix" -name kvq.pc -print -quit)
[ -n "$description" ] || { echo "FAILED: there is no kvq.pc below $prefix"; exit 1; }
export PKG_CONFIG_PATH=${description%/*}
passed=0 failed=0

# needs TOOL...
needs() {
  local tool
  for tool in "$@"; do command -v "$tool" >/dev/null || { echo "skipped: there is no $tool"; exit 77; }; done
}

# count PASSED FAILED
count() { passed=$((passed + $1)) failed=$((failed + $2)); }

# check NAME COMMAND...: one more test, whose output is shown if it fails
check() {
  local begin=$SECONDS
  if "${@:2}" >"$build/log" 2>&1; then
    count 1 0
    echo "ok: $1 ($((SECONDS - begin)) s)"
  else
    count 0 1
    sed 's/^/    /' "$build/log"
    echo "FAILED: $1"
  fi
}

# embed_in_c PROGRAM: builds the sample in C, which those in all languages print the same as
embed_in_c() {
  # shellcheck disable=SC2046
  cc -O2 "$root/samples/c/embed.c" $(pkg-config --cflags --libs kvq) -o "$1"
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}
