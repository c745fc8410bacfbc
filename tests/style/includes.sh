#!/usr/bin/env bash
# A room may include itself and the rooms to its left, but not others between the same signs. cuda/ is a separate
# backend: it may include backend and whatever backend may.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

library="core < formats, weights, solver < backend < cache < training, io < api"
program="terminal < options < bench < measure < train < allocation < commands"

# check ROOT ORDER FOLDERS...: checks the rooms in ROOT.
check() {
  local root=$1 order=$2
  shift 2
  find "$@" -type f | LC_ALL=C sort | xargs awk -v root="$root" -v order="$order" '
    function fail(what) {
      print "FAILED: " FILENAME ":" FNR ": " what > "/dev/stderr"
      failed = 1
    }
    BEGIN {
      n = split(order, steps, " < ")
      for (i = 1; i <= n; ++i) {
        m = split(steps[i], rooms, ", ")
        for (j = 1; j <= m; ++j) place[rooms[j]] = i
      }
      if ("backend" in place) place["cuda"] = place["backend"] + 0.5
    }
    FNR == 1 {
      ++files
      room = FILENAME
      sub("^" root "/", "", room)
      sub("/.*", "", room)
      if (!(room in place)) fail(room " has no place in " order)
    }
    match($0, /^ *# *include *["<][a-z0-9_]+\//) {
      included = substr($0, RSTART, RLENGTH - 1)
      sub(/.*["<]/, "", included)
      if (included in place && included != room && place[included] >= place[room]) fail(room " includes " included)
    }
    END {
      if (!failed) print "ok: " files " files, " order
      exit failed
    }'
}

grep -qxF -- "    $library" docs/architecture.md || {
  echo "FAILED: docs/architecture.md has another order of rooms than $library" >&2
  exit 1
}
check src "$library" src/*/ cuda
check tools/kvq "$program" tools/kvq/*/
