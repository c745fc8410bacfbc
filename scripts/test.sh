#!/usr/bin/env bash
# Builds and tests everything: optimized with the default compiler, with the CUDA plug-in if nvcc is here, with Clang
# under the sanitizers, and the style checks. The last line is "N passed, N failed"; the exit status is 0 only if nothing failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
logs=build/test-logs
passed=0
failed=0
failures=()

# step NAME COMMAND...: runs the command with its output in a log, which is shown if it fails.
step() {
  local name=$1 log="$logs/${1//[^a-z0-9]/-}.log" start=$SECONDS status
  shift
  printf '%-28s ' "$name"
  "$@" >"$log" 2>&1
  status=$?
  printf '%s in %d s\n' "$([ $status -eq 0 ] && echo ok || echo FAILED)" $((SECONDS - start))
  [ $status -eq 0 ] || tail -n 60 "$log"
  return $status
}

count() {
  passed=$((passed + $1))
  failed=$((failed + $2))
}

# check NAME COMMAND...: a step that counts as one test.
check() {
  if step "$@"; then
    count 1 0
  else
    count 0 1
    failures+=("$1")
  fi
}

# A ctest entry counts as one test, or as many as a doctest program says that it ran. A program that fails without
# naming a failed case, for example by crashing, is one failure more.
count_tests() {
  awk '
    /^[0-9]+: \[doctest\] test cases:/ {
      id = $1 + 0
      gsub(/[^0-9|]/, " ")
      split($0, field, "|")
      cases[id] = 1
      passes[id] += field[2]
      fails[id] += field[3]
    }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+:/ {
      match($0, /#[0-9]+/)
      id = substr($0, RSTART + 1, RLENGTH - 1) + 0
      if (/ Passed +[0-9.]+ sec/) passes[id] += !cases[id]
      else if (!/Skipped/) fails[id] += !fails[id]
    }
    END {
      for (id in passes) passed += passes[id]
      for (id in fails) failed += fails[id]
      print passed + 0, failed + 0
    }' "$1"
}

# build_and_test PRESET OPTIONS...
build_and_test() {
  local preset=$1 before=$failed
  shift
  check "$preset: configure" cmake --preset "$preset" -DKVQ_BUILD_TESTS=ON -DKVQ_BUILD_SAMPLES=ON "$@"
  check "$preset: build" cmake --build --preset "$preset" --parallel "$jobs"
  [ "$failed" -eq "$before" ] || return
  step "$preset: test" ctest --preset "$preset" --parallel "$jobs" --verbose --timeout 1200 --no-tests=error ||
    failures+=("$preset: test")
  # shellcheck disable=SC2046
  count $(count_tests "$logs/$preset--test.log")
}

format() {
  local file status=0
  for file in $(find include src cuda samples tests -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort); do
    clang-format "$file" | cmp -s - "$file" && continue
    echo "clang-format -i $file"
    status=1
  done
  return $status
}

tidy() {
  sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/sanitize/compile_commands.json | grep -F "$PWD/src/" | sort -u |
    xargs -d '\n' -n 1 -P "$jobs" clang-tidy -quiet -p build/sanitize
}

mkdir -p "$logs"
if ! scripts/setup.sh --test; then
  echo "0 passed, 1 failed"
  exit 1
fi

build_and_test release -DKVQ_BUILD_BENCHMARKS=ON
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  build_and_test cuda
else
  echo "cuda: skipped, no nvcc"
fi
build_and_test sanitize
check "format" format
check "tidy" tidy

[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ]
