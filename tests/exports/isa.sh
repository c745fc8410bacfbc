#!/usr/bin/env bash
# Sources compiled with AVX-512 flags must not define functions that the linker may merge with those of other sources
# (inline functions, template instances): a processor without AVX-512 could end up running them.
#   isa.sh OBJECT...
set -euo pipefail

status=0
checked=0
for object in "$@"; do
  [[ $object == *_avx512vnni.cpp.o ]] || continue
  checked=$((checked + 1))
  shared=$(nm -C --defined-only "$object" | grep -E '^[0-9a-f]* ?W ' | cut -c20- || true)
  [ -z "$shared" ] && continue
  printf 'FAILED: %s shares\n%s\n' "$(basename "$object")" "$shared" >&2
  status=1
done
[ $checked -gt 0 ] || { echo "FAILED: there is no AVX-512 object to check" >&2; exit 1; }
[ $status -ne 0 ] || echo "ok: $checked objects share nothing"
exit $status
