#!/usr/bin/env bash
# Prints the files that a change touches, a line each: those that differ from the commit that the change began with, and those
# that git does not know yet. That commit is KVQ_TEST_BASE, or where the branch left origin's main branch; on that branch
# itself, the newest commit that is a day older than the last. Exits with 1 if there is no such commit, for example in a tree
# without git or without an origin.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quiet() { "$@" 2>/dev/null; }
[ "$(quiet git rev-parse --show-toplevel)" = "$(pwd -P)" ]
if [ -n "${KVQ_TEST_BASE:-}" ]; then
  base=$(quiet git rev-parse --verify "$KVQ_TEST_BASE^{commit}") || { echo "KVQ_TEST_BASE: no commit $KVQ_TEST_BASE" >&2; exit 1; }
else
  base=$(quiet git merge-base HEAD origin/HEAD)
  if [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-list -1 --min-age=$(($(git log -1 --format=%ct) - 24 * 60 * 60)) HEAD)
    [ -n "$base" ]
  fi
fi
git diff --name-only "$base"
git ls-files --others --exclude-standard
