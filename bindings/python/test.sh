#!/usr/bin/env bash
# Tests the Python package against an installed kvq: as a wheel made of it, in a folder of its own.
#
# PYTHON, or else BUILD_DIR/venv/bin/python, or else python3 needs NumPy and pytest; PyTorch, scikit-build-core, auditwheel,
# mypy and ruff are used where they are.
# The tests of libkvq.transformers are not among these.
. "$(dirname "$0")/../testing.sh"
. "$here/pytest.sh"
python=python3
[ ! -x "$build/venv/bin/python" ] || python=$build/venv/bin/python
python=${PYTHON:-$python}
needs_modules numpy pytest
has() { "$python" -c "import $1" 2>/dev/null; }
export PYTHONDONTWRITEBYTECODE=1
exclude=()

cd "$here"
if has ruff; then
  check "formatting" "$python" -m ruff format --check --no-cache .
  check "lint" "$python" -m ruff check --no-cache .
fi
if has mypy; then
  { has torch && has transformers; } || exclude=(--exclude transformers)
  check "types" env LIBKVQ_LIBRARY="$library" "$python" -m mypy --cache-dir "$build/mypy" "${exclude[@]}" libkvq
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
  check "wheel and source distribution" env PYTHON="$python" bash "$here/package.sh" "$build/dist" "$prefix"
  check "installs" installs
  check "source distribution" same_wheel_from_sdist
  path=$build/site
  LIBKVQ_TEST_WHEEL=$(echo "$build"/dist/*.whl)
  export LIBKVQ_TEST_WHEEL
  unset LIBKVQ_LIBRARY
else
  echo "no wheel: $python has no scikit-build-core or no pip; the sources are tested as they are"
  path=$here
  export LIBKVQ_LIBRARY=$library
fi

cd "$build"
PYTHONPATH=$path LIBKVQ_TEST_PREFIX=$prefix "$python" -m pytest -p no:cacheprovider -q -rs --durations=3 \
  --junit-xml="$build/tests.xml" --ignore-glob="$here/tests/*transformers*" "$here/tests"
count_pytest "$build/tests.xml"
for kind in numpy torch; do
  has $kind && echo "$kind: $(PYTHONPATH=$path "$python" "$here/benchmarks/call_cost.py" $kind) ns a call"
done
finish
