#!/usr/bin/env bash
# Shell completion in bash, and in zsh and fish if installed.
#   completion.sh KVQ_PROGRAM
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
files=$here/../../packaging/completions
PATH=$(dirname "$1"):$PATH

# expect SHELL FOUND EXPECTED
expect() {
  [ "$2" = "$3" ] || { echo "FAILED: $1 offers \"$2\", not \"$3\"" >&2; exit 1; }
  echo "ok: $1"
}

# in_bash WORD...: candidates for the last word
in_bash() {
  COMP_WORDS=(kvq "$@") COMP_CWORD=$#
  COMPREPLY=()
  _kvq
  echo "${COMPREPLY[*]}"
}
# shellcheck source=/dev/null
source "$files/kvq.bash"
expect bash "$(in_bash eval perplexity --device "")" "cpu cuda"
expect bash "$(in_bash gen)" "generate"
expect bash "$(in_bash eval perplexity --text "")" ""

if command -v fish >/dev/null; then
  offered=$(fish --no-config -c "source $files/kvq.fish; complete -C 'kvq eval perplexity --device c'")
  expect fish "$(echo $offered)" "cpu cuda"
fi
if command -v zsh >/dev/null; then
  # _describe gets pairs NAME:ABOUT in an array of that name
  offered=$(zsh -f -c '_describe() { print -r -- ${(P)2%%:*} }; _files() { print files }
    words=(kvq eval perplexity --device c) CURRENT=5; source '"$files"'/_kvq
    words=(kvq eval perplexity --text "") CURRENT=5; source '"$files"'/_kvq')
  expect zsh "$(echo $offered)" "cpu cuda files"
fi
