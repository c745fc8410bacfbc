#!/usr/bin/env bash
# A library with device code shows its entry point and nothing else, and loads where there is neither a driver nor
# a CUDA library but those named: what else is missing there is reported, not found out by the loader.
#   plugin.sh LIBRARY ENTRY_POINT [CUDA_LIBRARY]...
set -euo pipefail

library=$1
entry=$2
allowed=${*:3}
status=0

fail() {
  echo "FAILED: $*" >&2
  status=1
}

exported=$(nm -D --defined-only "$library" | awk '{print $3}')
[ "$exported" = "$entry" ] || fail "exported are: $exported"

cuda=$(objdump -p "$library" | awk '$1 == "NEEDED" && tolower($2) ~ /cuda|nv|cublas/ {print $2}' | xargs)
[ "$cuda" = "$allowed" ] || fail "needed CUDA libraries are: '$cuda', not '$allowed'"

[ $status -ne 0 ] || echo "ok: one symbol, CUDA libraries needed: ${allowed:-none}"
exit $status
