#!/usr/bin/env bash
# The bytes a token in docs/choosing.md are those that the program says now.
#   choosing.sh KVQ_PROGRAM
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
while IFS= read -r line; do
  grep -qxF -- "$line" "$root/docs/choosing.md" || {
    echo "FAILED: docs/choosing.md lacks what scripts/cache_bytes.py prints: $line" >&2
    exit 1
  }
done < <("$root/scripts/cache_bytes.py" "$1")
wait $!
echo "ok: the table of docs/choosing.md"
