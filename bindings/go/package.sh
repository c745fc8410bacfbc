#!/bin/bash
# The module as a zip, in the form of Go's module files: package.sh OUTPUT_DIR [PREFIX...]. Needs no installed kvq.
set -euo pipefail
(($# >= 1)) || { echo "usage: package.sh OUTPUT_DIR [PREFIX...]" >&2; exit 2; }
output=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$output"

python3 - "$here" "$output" <<'PYTHON'
import json
import pathlib
import sys
import zipfile

here, output = map(pathlib.Path, sys.argv[1:])
root = here.parents[1]
version = "v" + json.loads((root / "bindings" / "kvq-api.json").read_text(encoding="utf-8"))["version"]
files = {path.relative_to(here).as_posix(): path for pattern in ("go.mod", "README.md", "**/*.go", "raw/*.[ch]")
         for path in here.glob(pattern)}
files["LICENSE"] = root / "LICENSE"
target = output / ("kvq-go-%s.zip" % version)
with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
    for name in sorted(files):
        # The same files give the same bytes.
        archive.writestr(zipfile.ZipInfo("kvq@%s/%s" % (version, name)), files[name].read_bytes(), zipfile.ZIP_DEFLATED)
print(target)
PYTHON
