#!/usr/bin/env bash
# Tests libkvq.transformers against an installed kvq. Tests of the GPU are skipped where there is none.
#
# usage: test_transformers.sh PREFIX [BUILD_DIR [ARGUMENTS OF PYTEST]]    BUILD_DIR is left alone
#
# PYTHON (python3) needs pytest, PyTorch and transformers.
. "$(dirname "$0")/../testing.sh"
. "$here/pytest.sh"
shift
[ $# -eq 0 ] || shift
python=${PYTHON:-python3}
needs_modules pytest torch transformers
export LIBKVQ_LIBRARY=$library PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 PATH=$prefix/bin:$PATH HF_HUB_OFFLINE=1
results=$(mktemp)
trap 'rm -f "$results"' EXIT
"$python" -m pytest -p no:cacheprovider -q -rs --durations=3 --junit-xml="$results" "$@" "$here"/tests/test_transformers*.py
count_pytest "$results"
finish
