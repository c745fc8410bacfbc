#!/usr/bin/env bash
# Tests kvq-vllm with vLLM on the CPU, against an installed kvq.
#
# usage: test.sh PREFIX [BUILD_DIR [ARGUMENTS OF PYTEST]]
#
# The first time it downloads vLLM and PyTorch from PyPI, 1 GB, into BUILD_DIR/venv, which takes 2.4 GB. Without them it
# skips. KVQ_VLLM_TEST_MODEL is a folder with a Llama of heads of 128 in place of the embedded model.
. "$(dirname "$0")/../testing.sh"
. "$here/../python/pytest.sh"
shift
[ $# -eq 0 ] || shift
venv=$build/venv
python=$venv/bin/python
stubs=$build/stubs
export PYTHONDONTWRITEBYTECODE=1

skip() {
  [ ! -e "$build/log" ] || tail -n 5 "$build/log"
  echo "skipped: $1"
  exit 77
}

[ -e "${KVQ_VLLM_TEST_MODEL:-$root/models/demo}/model.safetensors" ] || skip "there is no model in $KVQ_VLLM_TEST_MODEL"
needs python3 cc nm readelf
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || skip "python3 is not 3.11 or 3.12"

# Anew when the requirements have changed.
wanted=$(sha256sum "$here/tests/requirements.txt" "$here/tests/make_stubs.py")
if [ "$(cat "$build/installed" 2>/dev/null)" != "$wanted" ]; then
  rm -rf "$venv" "$stubs" "$build/installed"
  python3 -m venv "$venv" >"$build/log" 2>&1 || skip "python3 makes no virtual environment"
  "$python" -m pip install -q --disable-pip-version-check uv >"$build/log" 2>&1 &&
    env -u PYTHONDONTWRITEBYTECODE "$venv/bin/uv" pip install -q --python "$python" --no-deps --compile-bytecode \
      -r "$here/tests/requirements.txt" >"$build/log" 2>&1 || skip "vLLM could not be downloaded"
  "$python" "$here/tests/make_stubs.py" "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch/lib" \
    "$stubs" >"$build/log" 2>&1 || { sed 's/^/    /' "$build/log"; echo "FAILED: stubs"; exit 1; }
  echo "$wanted" >"$build/installed"
fi
export LD_LIBRARY_PATH=$stubs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LIBKVQ_LIBRARY=$library KVQ_TEST_PROGRAM=$prefix/bin/kvq
export PYTHONPATH=$root/bindings/python MYPYPATH=$root/bindings/python

cd "$here"
check "formatting" "$python" -m ruff format --check --no-cache .
check "lint" "$python" -m ruff check --no-cache .
check "types" "$python" -m mypy --cache-dir "$build/mypy" kvq_vllm
# From a copy, since setuptools writes beside what it builds.
installs() {
  rm -rf "$build/source" && cp -r "$here" "$build/source" &&
    "$python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall "$build/source"
}
check "installs" installs

cd "$build"
VLLM_CACHE_ROOT=$build/cache "$python" -m pytest -p no:cacheprovider -q -rs --durations=5 --junit-xml="$build/tests.xml" \
  "$@" "$here/tests"
count_pytest "$build/tests.xml"
finish
