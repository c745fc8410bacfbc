#!/usr/bin/env bash
# scripts/plot_json.py draws what the program prints, or names what it cannot draw. Exit status 77 without matplotlib.
#   plots.sh KVQ_PROGRAM
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
kvq=$1
model=$root/models/demo
text=$model/sample.txt

echo '{"seconds": 1}' >other.json
if message=$(python3 "$root/scripts/plot_json.py" other.json other.svg 2>&1); then
  echo "FAILED: other.json was drawn" >&2
  exit 1
fi
grep -qF "other.json is not what kvq --json writes" <<<"$message" || { echo "FAILED: $message" >&2; exit 1; }
python3 -c "import matplotlib" 2>/dev/null || { echo "skipped: there is no matplotlib"; exit 77; }

# drawn TEXT ARGUMENTS...: the picture of what the command prints has this text in it
drawn() {
  local text=$1
  shift
  "$kvq" "$@" --json >measured.json
  python3 "$root/scripts/plot_json.py" measured.json drawn.svg
  grep -qF ">$text<" drawn.svg || {
    echo "FAILED: the picture of kvq $* lacks \"$text\"" >&2
    exit 1
  }
}

window=(--model "$model" --text "$text" --context 128 --windows 1)
drawn gs2 eval perplexity "${window[@]}" --kv int4 --kv gs2
drawn streaming eval eviction "${window[@]}" --needles 1 --methods snapkv,streaming --budgets 32,50% --kv int4
drawn values eval error "${window[@]}" --kv int4
drawn fp16 bench attend --length 64,128 --heads 4 --kv-heads 2 --kv int4
drawn q_proj quantize --model "$model" --scheme nuq-4 --out weights
echo "ok: pictures of five commands"
