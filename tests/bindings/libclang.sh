#!/usr/bin/env bash
# Checks that python3 has libclang; if not, exits with status 77 and a message.
python3 - <<'PYTHON' 2>/dev/null || { echo "skipped: python3 has no libclang (Debian: python3-clang)"; exit 77; }
import sys
sys.path.append("/usr/lib/python3/dist-packages")
from clang import cindex
cindex.Index.create()
PYTHON
