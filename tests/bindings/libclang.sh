#!/usr/bin/env bash
# Whether python3 can read C here; if not, says so and ends with status 77.
python3 - <<'PYTHON' 2>/dev/null || { echo "skipped: python3 has no libclang (Debian: python3-clang)"; exit 77; }
import sys
sys.path.append("/usr/lib/python3/dist-packages")
from clang import cindex
cindex.Index.create()
PYTHON
