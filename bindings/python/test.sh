#!/usr/bin/env bash
# Tests the Python package against an installed kvq: as a wheel made of it, in a folder of its own.
#
# usage: test.sh PREFIX [BUILD_DIR]
#
# PYTHON, or else BUILD_DIR/venv/bin/python, or else python3 needs NumPy and pytest; PyTorch, scikit-build-core, auditwheel,
# mypy and ruff are used where they are.
# The tests of libkvq.transformers are not among these.
set -uo pipefail
[ $# -ge 1 ] || { sed -n '4p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=$(cd "$1" && pwd) || exit 2
build=${2:-$root/build/bindings/python}
mkdir -p "$build"
build=$(cd "$build" && pwd)
python=python3
[ ! -x "$build/venv/bin/python" ] || python=$build/venv/bin/python
python=${PYTHON:-$python}
for module in numpy pytest; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "skipped: $python has no $module"
    exit 77
  fi
done
has() { "$python" -c "import $1" 2>/dev/null; }
library=$(find "$prefix"/lib* -name libkvq.so.1 -print -quit)
[ -n "$library" ] || { echo "no libkvq.so.1 in $prefix/lib"; exit 1; }
export PYTHONDONTWRITEBYTECODE=1
passed=0 failed=0
exclude=()

step() { # NAME COMMAND...: one more that passed or failed
  local name=$1
  shift
  if "$@" >"$build/step.log" 2>&1; then
    echo "ok: $name"
    passed=$((passed + 1))
  else
    cat "$build/step.log"
    echo "FAILED: $name"
    failed=$((failed + 1))
  fi
}

cd "$here"
if has ruff; then
  step "formatting" "$python" -m ruff format --check --no-cache .
  step "lint" "$python" -m ruff check --no-cache .
fi
if has mypy; then
  { has torch && has transformers; } || exclude=(--exclude transformers)
  step "types" env LIBKVQ_LIBRARY="$library" "$python" -m mypy --cache-dir "$build/mypy" "${exclude[@]}" libkvq
fi

# The wheel, and the same one from the source distribution, unpacked somewhere else.
installs() { "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$build/site" "$build"/dist/*.whl; }
same_wheel_from_sdist() {
  rm -rf "$build/sdist" && mkdir -p "$build/sdist/dist" && tar -xf "$build"/dist/*.tar.gz -C "$build/sdist" --strip-components=1 &&
    [ -e "$build/sdist/kvq/src/CMakeLists.txt" ] && cd "$build/sdist" &&
    "$python" -c 'import sys, build_backend; build_backend.build_wheel("dist", {"cmake.define.LIBKVQ_PREFIX": sys.argv[1]})' "$prefix" &&
    diff <(contents "$build"/sdist/dist/*.whl) <(contents "$build"/dist/*.whl)
}
contents() { "$python" -m zipfile -l "$1" | awk '{print $1}' | grep -v -e dist-info -e '^libkvq\.libs' -e '/$' | sort; }
rm -rf "$build/site" "$build/dist"
if has scikit_build_core && has pip; then
  step "wheel and source distribution" env PYTHON="$python" bash "$here/package.sh" "$build/dist" "$prefix"
  step "installs" installs
  step "source distribution" same_wheel_from_sdist
  path=$build/site
  unset LIBKVQ_LIBRARY
else
  echo "no wheel: $python has no scikit-build-core or no pip; the sources are tested as they are"
  path=$here
  export LIBKVQ_LIBRARY=$library
fi

cd "$build"
PYTHONPATH=$path LIBKVQ_TEST_PREFIX=$prefix "$python" -m pytest -p no:cacheprovider -q -rs --durations=3 \
  --junit-xml="$build/tests.xml" --ignore-glob="$here/tests/*transformers*" "$here/tests"
counts=$("$python" - "$build/tests.xml" <<'EOF'
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
total, failed, skipped = (sum(int(suite.get(name)) for name in names) for names in
                          (["tests"], ["failures", "errors"], ["skipped"]))
print(total - failed - skipped, failed)
EOF
) || counts="0 1"
for kind in numpy torch; do
  has $kind && echo "$kind: $(PYTHONPATH=$path "$python" "$here/benchmarks/call_cost.py" $kind) ns a call"
done
passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
