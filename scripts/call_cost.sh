#!/usr/bin/env bash
# What it costs to append and to attend to one token through each binding, beside the same calls in C: a cache so small that
# the work is next to nothing, one program a language, all in turn, medians of several rounds.
#   call_cost.sh PREFIX [ROUNDS]   PREFIX: where kvq is installed. PYTHON (python3) needs NumPy, and PyTorch for its row.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; }

prefix=$(cd "$1" && pwd)
rounds=${2:-5}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/build/call_cost
python=${PYTHON:-python3}
rm -rf "$work"
mkdir -p "$work"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name kvq.pc -print -quit)")
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libkvq.so.1 -print -quit)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH KVQ_DIR=$prefix LIBKVQ_LIBRARY=$LD_LIBRARY_PATH/libkvq.so.1

# make LANGUAGE COMMAND...: builds what program_LANGUAGE runs; languages that are not here are left out.
languages=()
make() {
  if "${@:2}" >"$work/$1.log" 2>&1; then languages+=("$1"); else echo "without $1: $(tail -n 1 "$work/$1.log")"; fi
}

read -ra flags <<<"$(pkg-config --cflags --libs kvq)"
csharp() {
  bindings/csharp/build.sh "$work" && (cd "$work" && mcs -langversion:latest -unsafe -optimize+ -r:Kvq.dll \
    -out:CallCost.exe "$root/bindings/csharp/Samples/CallCost.cs")
}
make c "${CC:-cc}" -std=c99 -O2 bindings/c/call_cost.c "${flags[@]}" -o "$work/c"
make cpp "${CXX:-c++}" -std=c++20 -O2 bindings/cpp/call_cost.cpp "${flags[@]}" -o "$work/cpp"
make rust cargo build --quiet --offline --release --example call_cost --manifest-path bindings/rust/Cargo.toml \
  --target-dir "$work/rust"
make go bash -c "cd bindings/go && go build -o '$work/go' ./call_cost"
make csharp csharp
make python-numpy "$python" -c 'import numpy'
make python-torch "$python" -c 'import torch'

program() {
  case $1 in
    rust) "$work/rust/release/examples/call_cost" ;;
    csharp) mono "$work/CallCost.exe" ;;
    python-*) PYTHONPATH=bindings/python "$python" bindings/python/benchmarks/call_cost.py "${1#python-}" ;;
    *) "$work/$1" ;;
  esac
}

for ((round = 0; round < rounds; round++)); do
  for language in "${languages[@]}"; do
    echo "$language $(program "$language")" >>"$work/rows"
  done
done

python3 - "$work/rows" <<'PYTHON'
import collections, statistics, sys

found = collections.defaultdict(list)
for line in open(sys.argv[1]):
    language, _, append, _, attend = line.split()
    found[language].append((int(append), int(attend)))
medians = {language: [statistics.median(column) for column in zip(*rows)] for language, rows in found.items()}
print("%-14s %10s %10s %10s %10s" % ("ns a call", "append", "over C", "attend", "over C"))
for language, (append, attend) in medians.items():
    print("%-14s %10.0f %10.0f %10.0f %10.0f" %
          (language, append, append - medians["c"][0], attend, attend - medians["c"][1]))
PYTHON
