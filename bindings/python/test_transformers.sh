#!/usr/bin/env bash
# Tests libkvq.transformers against an installed kvq. Tests of the GPU are skipped where there is none.
#
# usage: test_transformers.sh PREFIX [BUILD_DIR [ARGUMENTS OF PYTEST]]    BUILD_DIR is left alone
#
# PYTHON (python3) needs pytest, PyTorch and transformers.
set -uo pipefail
[ $# -ge 1 ] || { sed -n '4p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$1" && pwd) || exit 2
shift
[ $# -eq 0 ] || shift
python=${PYTHON:-python3}
for module in pytest torch transformers; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "skipped: $python has no $module"
    exit 77
  fi
done
library=$(find "$prefix"/lib* -name libkvq.so.1 -print -quit)
[ -n "$library" ] || { echo "no libkvq.so.1 in $prefix/lib"; exit 1; }
export LIBKVQ_LIBRARY=$library PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 PATH=$prefix/bin:$PATH HF_HUB_OFFLINE=1
results=$(mktemp)
trap 'rm -f "$results"' EXIT
"$python" -m pytest -p no:cacheprovider -q -rs --durations=3 --junit-xml="$results" "$@" "$here"/tests/test_transformers*.py
"$python" - "$results" <<'EOP'
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
total, failed, skipped = (sum(int(suite.get(name)) for name in names) for names in
                          (["tests"], ["failures", "errors"], ["skipped"]))
print("%d passed, %d failed" % (total - failed - skipped, failed))
sys.exit(failed > 0)
EOP
