#!/usr/bin/env bash
# scripts/bench_peers.py names missing dependencies, and runs the embedded model with llama.cpp if that is installed.
#   peers.sh KVQ_PROGRAM
set -euo pipefail

script=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/bench_peers.py

# refused MESSAGE ARGUMENTS...: the script ends with this message; -S hides Python's packages from it.
refused() {
  local message=$1 output
  shift
  if output=$(env -u PYTHONPATH python3 -S "$script" "$@" 2>&1); then
    echo "FAILED: $* was not refused" >&2
    exit 1
  fi
  grep -qF -- "$message" <<< "$output" || {
    printf 'FAILED: %s: expected "%s", got:\n%s\n' "$*" "$message" "$output" >&2
    exit 1
  }
}

refused "--head-dim 48: ggml's blocks take multiples of 32" "$1" --head-dim 48
refused "--heads 6: must be a multiple of --kv-heads 4" "$1" --heads 6 --kv-heads 4
refused "--windows 0: must be at least 1" "$1" --windows 0
refused "times need ggml: pip install llama-cpp-python" "$1" --only times
refused "--ggml /absent: /absent/libggml.so: cannot open" "$1" --only times --ggml /absent
refused "losses need packages" "$1" --only losses
python3 -c "import gguf, llama_cpp, numpy, tokenizers" 2> /dev/null || {
  echo "ok: what the script refuses; its figures need llama-cpp-python, gguf and tokenizers"
  exit
}
python3 "$script" "$1" --only losses --context 256 --windows 1 --types q8_0 --kv int8
python3 "$script" "$1" --only times --length 512 --rounds 1 --types q8_0 --kv int8
echo "ok: both parts, and what the script refuses"
