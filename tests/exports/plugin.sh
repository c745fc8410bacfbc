#!/usr/bin/env bash
# The CUDA plug-in shows its entry point and nothing else, and can be loaded where there is neither a driver nor a CUDA
# library: what is missing there is reported, not found out by the loader.
#   plugin.sh LIBRARY
set -euo pipefail

library=$1
status=0

fail() {
  echo "FAILED: $*" >&2
  status=1
}

exported=$(nm -D --defined-only "$library" | awk '{print $3}')
[ "$exported" = kvq_cuda_plugin ] || fail "exported are: $exported"

needed=$(objdump -p "$library" | awk '$1 == "NEEDED" {print $2}')
! grep -iE 'cuda|nv|cublas' <<<"$needed" || fail "a CUDA library is needed"

[ $status -ne 0 ] || echo "ok: one symbol, no CUDA library needed"
exit $status
