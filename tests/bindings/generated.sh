#!/usr/bin/env bash
# Bindings cannot drift from the header: all generated files are up to date, and if a struct, a constant or a parameter
# changes in a copy of the header, files of every language are stale until they are generated again. The generator
# refuses a pointer without the marks it needs. Exit status 77 if libclang is missing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
generate=(python3 -B "$root/bindings/generate/generate.py")
"$here/libclang.sh" || exit $?

"${generate[@]}" --check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A file or folder of each language.
places=(bindings/kvq-api.json include/kvq.hpp bindings/rust/ bindings/go/ bindings/csharp/ bindings/python/)
mapfile -t files < <("${generate[@]}" --list)

# changed NAME SED_SCRIPT: makes a tree with the changed header and the current files
changed() {
  tree=$work/$1
  mkdir -p "$tree/include"
  (cd "$root" && cp --parents "${files[@]}" "$tree")
  sed "$2" "$root/include/kvq.h" >"$tree/include/kvq.h"
  ! cmp -s "$root/include/kvq.h" "$tree/include/kvq.h" || { echo "FAILED: $1: \"$2\" changes nothing" >&2; exit 1; }
}

# stale_everywhere NAME SED_SCRIPT: the check names stale files of every language and passes after generating them
stale_everywhere() {
  changed "$@"
  if "${generate[@]}" --check --root "$tree" >/dev/null 2>"$tree/answer"; then
    echo "FAILED: $1: no file is stale" >&2
    exit 1
  fi
  for place in "${places[@]}"; do
    grep -q "^FAILED: $place.* is stale" "$tree/answer" && continue
    echo "FAILED: $1: no file of $place is stale" >&2
    cat "$tree/answer" >&2
    exit 1
  done
  "${generate[@]}" --root "$tree" >/dev/null
  "${generate[@]}" --check --root "$tree" >/dev/null
}

# refused NAME SED_SCRIPT PATTERN: the generator refuses the header with a matching message
refused() {
  changed "$1" "$2"
  if "${generate[@]}" --root "$tree" >/dev/null 2>"$tree/answer" || ! grep -q "$3" "$tree/answer"; then
    echo "FAILED: $1 should have been refused with: $3" >&2
    cat "$tree/answer" >&2
    exit 1
  fi
}

stale_everywhere added_field 's/^} kvq_context_options;/  int32_t added;  \/**< Something. *\/\n&/'
stale_everywhere other_constant 's/KVQ_E_LIMIT = -3/KVQ_E_LIMIT = -13/'
stale_everywhere other_parameter 's/\(kvq_sequence_truncate(.*\)int32_t length/\1int64_t length/'

refused pointer_without_length 's/ \\length n_sequences \\memory host/ \\memory host/' 'lacks \\length'
refused pointer_without_memory '/\\param yaml/,/\\length length/ s/ \\memory host//' 'yaml lacks \\memory'
refused handle_without_parent 's/^ \*  \\param result  receives the handle. \\parent cache/ *  \\param result  receives it./' 'lacks \\parent'
refused unknown_length 's/\\length n_sequences/\\length n_sequence/' 'n_sequence, which is nothing here'

echo "ok: ${#files[@]} generated files are up to date; changes of the header are found in every language"
