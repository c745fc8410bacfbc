#!/usr/bin/env bash
# The bindings cannot drift from the header: everything that is made from it is as it would be made now; and if a struct,
# a constant or a parameter changes in a copy of the header, files of every language are found to be stale until they
# are made again. A pointer of which the header does not say enough is refused. Exit status 77 if that cannot be asked here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
generate=(python3 -B "$root/bindings/generate/generate.py")
"$here/libclang.sh" || exit $?

"${generate[@]}" --check

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A file or folder of every language.
places=(bindings/kvq-api.json include/kvq.hpp bindings/rust/ bindings/go/ bindings/csharp/ bindings/python/)
mapfile -t files < <("${generate[@]}" --list)

# changed NAME SED_SCRIPT: a tree with the changed header and the files as they are
changed() {
  tree=$work/$1
  mkdir -p "$tree/include"
  (cd "$root" && cp --parents "${files[@]}" "$tree")
  sed "$2" "$root/include/kvq.h" >"$tree/include/kvq.h"
  ! cmp -s "$root/include/kvq.h" "$tree/include/kvq.h" || { echo "FAILED: $1: \"$2\" changes nothing" >&2; exit 1; }
}

# stale_everywhere NAME SED_SCRIPT: the check fails and names files of every language; made again, they pass
stale_everywhere() {
  changed "$@"
  if "${generate[@]}" --check --root "$tree" >/dev/null 2>"$tree/answer"; then
    echo "FAILED: $1: nothing was found to be stale" >&2
    exit 1
  fi
  for place in "${places[@]}"; do
    grep -q "^FAILED: $place.* is not what" "$tree/answer" && continue
    echo "FAILED: $1: no file of $place was found to be stale" >&2
    cat "$tree/answer" >&2
    exit 1
  done
  "${generate[@]}" --root "$tree" >/dev/null
  "${generate[@]}" --check --root "$tree" >/dev/null
}

# refused NAME SED_SCRIPT PATTERN: such a header is not accepted, with a message
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
refused pointer_without_memory 's/^ \*  \\param yaml .*/ *  \\param yaml text. \\length length \\keeps call/; /^ \*                 \\memory host \\keeps call/d' 'yaml lacks \\memory'
refused handle_without_parent 's/^ \*  \\param result  receives the handle. \\parent cache/ *  \\param result  receives it./' 'lacks \\parent'
refused unknown_length 's/\\length n_sequences/\\length n_sequence/' 'n_sequence, which is nothing here'

echo "ok: ${#files[@]} files are what the header makes them; changes of it are found in every language"
