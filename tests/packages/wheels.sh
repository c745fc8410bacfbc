#!/usr/bin/env bash
# Checks Python's wheels: what they need of a system, and that this machine's can be installed and used. Those for others
# run a sample in C with their library, in emulators.
#   wheels.sh FOLDER      PYTHON (python3) needs auditwheel
set -euo pipefail

folder=$(realpath "$1")
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# is_manylinux WHEEL ARCHITECTURE: it runs where glibc is 2.28 or newer, as its tag says
is_manylinux() {
  local tag
  "$python" -m auditwheel show "$1" >"$work/log" 2>&1 || fail "auditwheel: $(cat "$work/log")"
  tag=$(tr '\n' ' ' <"$work/log" | sed -n "s/.*following platform tag: \"\([a-z0-9_]*\)\".*/\1/p")
  [[ $tag =~ ^manylinux_2_([0-9]+)_$2$ ]] && [ "${BASH_REMATCH[1]}" -le 28 ] || fail "auditwheel: $(cat "$work/log")"
  [[ $1 == *-py3-none-$tag.whl ]] || fail "$1 is tagged as another than $tag"
}

# sample COMPILER FOLDER LIBRARY RUN...: a sample in C, beside the library that it is linked to
sample() {
  local printed
  $1 -std=c99 -I"$root/include" "$root/samples/c/embed.c" "$2/$3" -o "$2/sample.exe"
  printed=$(cd "$2" && "${@:4}" ./sample.exe) || fail "the sample does not run: $printed"
  [[ $printed == *bits* ]] || fail "the sample printed: $printed"
}

for wheel in "$folder"/libkvq-*.whl; do
  unpacked=$work/$(basename "$wheel" .whl)
  "$python" -m zipfile -e "$wheel" "$unpacked"
  case $wheel in
    *linux*_"$(uname -m)".whl)
      is_manylinux "$wheel" "$(uname -m)"
      "$python" -m venv "$work/venv"
      "$work/venv/bin/pip" install --quiet --no-index --no-deps "$wheel"
      (cd "$work" && env -i "$work/venv/bin/python") <<'EOF' || fail "the package does not work"
import array

import libkvq

assert "/venv/" in libkvq.raw.library.path, libkvq.raw.library.path
with libkvq.Context(n_threads=1) as context:
    cache = libkvq.Cache(context, n_layers=1, q_heads=1, kv_heads=1, head_dim=8, policy="fp16")
    sequence = cache.sequence()
    token = memoryview(array.array("f", range(8))).cast("B").cast("f", (1, 1, 8))
    sequence.append(0, token, token)
    assert sequence.length(0) == 1
    try:
        libkvq.Policy(context, "no such format")
    except libkvq.KvqError as error:
        assert "no such format" in str(error), error
    else:
        raise AssertionError("a policy that does not exist")
EOF
      (cd "$work" && env -i python3 -c 'import _ctypes, ctypes, sys
library = ctypes.CDLL(sys.argv[1])
assert library.kvq_cpu_isa_count() > 0
_ctypes.dlclose(library._handle)' "$unpacked/libkvq/lib/libkvq.so.1") || fail "a process that unloads the library ends badly"
      # What asks the processor is in the wheel, too.
      if grep -qw avx2 /proc/cpuinfo; then
        info=$(env -i "$work/venv/bin/kvq" info) || fail "kvq info: $info"
        grep -qE '^instruction set +avx' <<<"$info" || fail "the program does not see AVX2: $info"
      fi
      echo "ok: $(basename "$wheel"), installed and used"
      ;;
    *linux*_aarch64.whl)
      is_manylinux "$wheel" aarch64
      if ! command -v qemu-aarch64-static >/dev/null || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
        echo "skipped: $(basename "$wheel") cannot be used here"
        continue
      fi
      sample aarch64-linux-gnu-gcc "$unpacked/libkvq/lib" libkvq.so.1 qemu-aarch64-static -E LD_LIBRARY_PATH=.
      echo "ok: $(basename "$wheel"), its library"
      ;;
    *-win_amd64.whl)
      "$root/tests/exports/run.sh" "$unpacked/libkvq/lib/kvq.dll"
      sample x86_64-w64-mingw32-gcc-posix "$unpacked/libkvq/lib" kvq.dll env WINEPATH='' "$root/cmake/toolchains/wine.sh"
      echo "ok: $(basename "$wheel"), its library"
      ;;
    *) fail "$(basename "$wheel") is for another system" ;;
  esac
done
