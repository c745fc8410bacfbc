#!/usr/bin/env bash
# Builds Kvq.dll and its documentation, Kvq.xml, with Mono's compiler: build.sh OUTPUT_DIR
set -euo pipefail

output=${1:?usage: build.sh OUTPUT_DIR}
mkdir -p "$output"
mcs -langversion:latest -unsafe -optimize+ -warn:4 -warnaserror -target:library -doc:"$output/Kvq.xml" \
  -out:"$output/Kvq.dll" -recurse:"$(dirname "$0")/Kvq/*.cs"
