#!/usr/bin/env bash
# A library with device code exports only its entry point, and loads without a driver and without CUDA libraries other
# than those named: it reports what is missing instead of failing to load.
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
