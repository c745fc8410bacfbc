# Common to test.sh and test_transformers.sh: the library, and the counts of pytest.
# shellcheck shell=bash
library=$(find "$prefix"/lib* -name libkvq.so.1 -print -quit)
[ -n "$library" ] || { echo "no libkvq.so.1 in $prefix/lib"; exit 1; }

needs_modules() {
  local module
  for module in "$@"; do
    "$python" -c "import $module" 2>/dev/null || { echo "skipped: $python has no $module"; exit 77; }
  done
}

# count_pytest XML: counts the tests in a file of pytest's --junit-xml
count_pytest() {
  local counts
  counts=$("$python" - "$1" <<'END'
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
total, failed, skipped = (sum(int(suite.get(name)) for name in names) for names in
                          (["tests"], ["failures", "errors"], ["skipped"]))
print(total - failed - skipped, failed)
END
  ) || counts="0 1"
  # shellcheck disable=SC2086
  count $counts
}
