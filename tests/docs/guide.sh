#!/usr/bin/env bash
# The bytes per token in docs/guide.md match the program's output.
#   guide.sh KVQ_PROGRAM
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
while IFS= read -r line; do
  grep -qxF -- "$line" "$root/docs/guide.md" || {
    echo "FAILED: docs/guide.md lacks what scripts/cache_bytes.py prints: $line" >&2
    exit 1
  }
done < <("$root/scripts/cache_bytes.py" "$1")
wait $!
echo "ok: the table of docs/guide.md"
