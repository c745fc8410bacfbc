#!/usr/bin/env bash
# Programs built with the last release's header still work with this one: constants, fields and binary interface have at
# most grown. Then checks changed copies of the header, to see that changes are found. Compares libraries compiled from
# the headers alone, whose functions do nothing; compilers hold src/api to the same declarations, and kvq_exports
# compares the real library's symbols.
#   run.sh C_COMPILER            exit status 77 if a tool is missing
#   run.sh C_COMPILER --renew    after a release: its header becomes the baseline. Commit the changes.
set -euo pipefail

compiler=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
header=$here/../../include/kvq.h
export LC_ALL=C

for program in python3 abidw abidiff; do
  command -v $program >/dev/null || { echo "skipped: there is no $program"; exit 77; }
done
"$here/../bindings/libclang.sh" || exit $?
[ "$(getconf LONG_BIT)" = 64 ] || { echo "skipped: the baseline is of machines with 64 bits"; exit 77; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# describe DIRECTORY FIELDS: writes the promises of DIRECTORY/kvq.h to three files next to it; its binary interface as
# seen by programs that know only FIELDS of its structs, which may have grown at their ends
describe() {
  local header=$1/kvq.h cut=$1/cut
  mkdir "$cut"
  python3 "$here/lists.py" "$header" --constants >"$1/constants.txt"
  python3 "$here/lists.py" "$header" --fields >"$1/fields.txt"
  python3 "$here/lists.py" "$header" --library "$2" >"$cut/kvq.c"
  # Adds a node of the next release for the function that is added below.
  { cat "$here/../../src/kvq.map" && echo 'KVQ_NEXT { global: kvq_api_added; };'; } >"$cut/kvq.map"
  # Uses file names without folders, as in the baseline.
  (cd "$cut" && "$compiler" -std=c99 -g -O0 -w -fPIC -shared -o kvq.so kvq.c -Wl,--version-script=kvq.map)
  abidw --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --no-architecture \
    --no-parameter-names --type-id-style hash --out-file "$1/kvq.abi" "$cut/kvq.so"
}

# compare DIRECTORY: prints differences from the baseline, including names and places of fields
compare() {
  local list
  for list in constants fields; do
    comm -23 <(sort "$here/$list.txt") <(sort "$1/$list.txt") | sed "s/^/no longer among the $list: /"
  done
  abidiff --harmless --no-added-syms "$here/kvq.abi" "$1/kvq.abi" || echo "abidiff: exit status $?"
}

# asked NAME [SED_SCRIPT]: changes a copy of the header and compares it
asked() {
  mkdir "$work/$1"
  sed "${2:-}" "$header" >"$work/$1/kvq.h"
  if [ $# -gt 1 ] && cmp -s "$header" "$work/$1/kvq.h"; then
    echo "FAILED: $1: the header has nothing that \"$2\" changes" >&2
    exit 1
  fi
  describe "$work/$1" "$here/fields.txt"
  compare "$work/$1" >"$work/$1/answer"
}

# says NAME PATTERN: the answer has a matching line
says() {
  grep -q "$2" "$work/$1/answer" && return
  echo "FAILED: a header with a change ($1) should have been found out by: $2" >&2
  cat "$work/$1/answer" >&2
  exit 1
}

# agrees NAME: the answer reports no loss
agrees() {
  ! grep -q '^no longer among\|^abidiff: ' "$work/$1/answer" && return
  echo "FAILED: $1: programs built with the last release would break" >&2
  cat "$work/$1/answer" >&2
  exit 1
}

if [ "${2:-}" = --renew ]; then
  mkdir "$work/header"
  cp "$header" "$work/header"
  python3 "$here/lists.py" "$header" --fields >"$work/fields.txt"
  describe "$work/header" "$work/fields.txt"
  cp "$work/header/"{constants.txt,fields.txt,kvq.abi} "$here"
  exit 0
fi

asked header
agrees header

asked inserted_field 's/^  int32_t n_threads;  .*/  int32_t inserted;\n&/'
says inserted_field '^no longer among the fields: kvq_context_options 2 n_threads int32_t$'
says inserted_field "'int32_t inserted', at offset"
asked removed_field '/^typedef struct kvq_append_batch {/,/^}/ s/^  kvq_dtype dtype;  .*//'
says removed_field '^no longer among the fields: kvq_append_batch 7 dtype kvq_dtype$'
says removed_field '^abidiff: '
asked other_type '/^typedef struct kvq_cache_options {/,/^}/ s/^  uint64_t max_bytes;/  int64_t max_bytes;/'
says other_type '^no longer among the fields: kvq_cache_options 11 max_bytes uint64_t$'
asked other_array 's/^  char name\[128\];/  char name[256];/'
says other_array '^no longer among the fields: kvq_device_info 2 name char\[128\]$'
says other_array '^abidiff: '
asked other_constant 's/KVQ_E_LIMIT = -3/KVQ_E_LIMIT = -13/'
says other_constant '^no longer among the constants: KVQ_E_LIMIT -3$'
asked other_parameter 's/\(kvq_sequence_truncate(.*\)int32_t length/\1int64_t length/'
says other_parameter 'kvq_sequence_truncate'
says other_parameter '^abidiff: '
asked other_hook 's/\(kvq_progress_hook)(void\* user, \)double done/\1float done/'
says other_hook '^abidiff: '
asked other_integer 's/^typedef int32_t kvq_dtype;/typedef int64_t kvq_dtype;/'
says other_integer '^abidiff: '
asked removed_function 's/kvq_api_version(void)/kvq_api_version_number(void)/'
says removed_function 'kvq_api_version()'
says removed_function '^abidiff: '

asked additions 's/^} kvq_context_options;/  int32_t added;\n&/
  s/^  KVQ_LOG_INFO = 2 .*/  KVQ_LOG_DEBUG = 3,\n&/
  s/^KVQ_API int32_t kvq_api_version(void);/&\nKVQ_API int32_t kvq_api_added(void);/'
agrees additions
for list in constants.txt:KVQ_LOG_DEBUG fields.txt:added kvq.abi:kvq_api_added; do
  grep -q "${list#*:}" "$work/additions/${list%:*}" || { echo "FAILED: $list was not added" >&2; exit 1; }
done

echo "ok: $(wc -l <"$here/constants.txt") constants, $(wc -l <"$here/fields.txt") fields, and the functions of the last release"
