#!/usr/bin/env bash
# Whether kvq.h says everything that bindings are generated from; 77 if that cannot be asked here.
set -euo pipefail

command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec python3 "$here/header.py" "$here/../../include/kvq.h"
