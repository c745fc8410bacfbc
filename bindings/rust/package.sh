#!/usr/bin/env bash
# Makes the crates kvq-sys and kvq, offline.
#
# usage: package.sh OUTPUT_DIR [PREFIX...]
#
# PREFIX, where kvq is installed, is not needed: nothing is compiled. kvq-sys has the library's sources, for its feature
# `bundled`.
set -euo pipefail
output=$(mkdir -p "${1:?usage: package.sh OUTPUT_DIR [PREFIX]}" && cd "$1" && pwd)
cd "$(dirname "$0")"
built=$(mktemp -d)
trap 'rm -rf "$built" kvq-sys/kvq' EXIT
package() { cargo package --quiet --offline --no-verify --allow-dirty --target-dir "$built" "$@"; }

mkdir kvq-sys/kvq
sources=(CMakeLists.txt LICENSE THIRD_PARTY_NOTICES cmake include src tools/CMakeLists.txt)
(cd ../.. && cp -r --parents "${sources[@]}" "$OLDPWD/kvq-sys/kvq")
package --package kvq-sys
# kvq asks for the kvq-sys of the registry, which an offline machine does not know.
package --package kvq --config 'patch.crates-io.kvq-sys.path="kvq-sys"'
cp "$built"/package/*.crate "$output"
ls "$output"/*.crate
