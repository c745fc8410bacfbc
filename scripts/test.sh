#!/usr/bin/env bash
# Builds and tests. The last line is "N passed, N failed"; the exit status is 0 only if nothing failed.
#   test.sh                       everything: optimized with the default compiler, with the CUDA plug-in if nvcc is here,
#                                 with Clang under the sanitizers, and the style checks
#   test.sh LEVEL [FILTER]        a part of it:
#     quick     unit and C API tests of the optimized build without CUDA: minutes the first time, then seconds
#     cpu       the optimized build without CUDA and all its tests
#     cuda      the same with the CUDA plug-in; tests on a GPU say that they skip if there is none
#     sanitize  a build with Clang's address and undefined behaviour sanitizers, and all its tests
#     bindings  the library as it is installed, used from every language that is here, and their packages
#     style     formatting, clang-tidy, includes between rooms, the reference of the C API
#   FILTER: only test cases whose names contain it, suites of the C API tests and ctest entries of that name
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
logs=build/test-logs
passed=0
failed=0
failures=()

# step NAME COMMAND...: runs the command with its output in a log, which is shown if it fails. Status 77 says that it cannot
# be run here, for a reason that it prints.
step() {
  local name=$1 log="$logs/${1//[^a-z0-9]/-}.log" start=$SECONDS status word
  shift
  printf '%-28s ' "$name"
  "$@" >"$log" 2>&1
  status=$?
  case $status in 0) word=ok ;; 77) word=skipped ;; *) word=FAILED ;; esac
  printf '%s in %d s\n' $word $((SECONDS - start))
  case $word in skipped) grep '^skipped: ' "$log" ;; FAILED) tail -n 60 "$log" ;; esac
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

# build PRESET TARGETS OPTIONS...: TARGETS is "all", or some with spaces between them. Kernels that no GPU here can run
# are compiled without much optimization.
build() {
  local preset=$1 targets=$2 before=$failed
  shift 2
  [ "$preset" != cuda ] || nvidia-smi -L >/dev/null 2>&1 || set -- "$@" -DKVQ_CUDA_QUICK=ON
  check "$preset: configure" cmake --preset "$preset" -DKVQ_BUILD_TESTS=ON -DKVQ_BUILD_SAMPLES=ON "$@"
  # shellcheck disable=SC2086
  check "$preset: build" cmake --build --preset "$preset" --parallel "$jobs" --target $targets
  [ "$failed" -eq "$before" ]
}

# run_tests PRESET PROGRAMS...: all tests of a build, or with no more than these programs.
run_tests() {
  local preset=$1 only=()
  shift
  [ $# -eq 0 ] || only=(--tests-regex "^($(IFS='|' && echo "$*"))\$")
  step "$preset: test" ctest --preset "$preset" --parallel "$jobs" --verbose --timeout 1200 --no-tests=error "${only[@]}" ||
    failures+=("$preset: test")
  # shellcheck disable=SC2046
  count $(count_tests "$logs/$preset--test.log")
}

# run_filtered PRESET PROGRAMS...: of these programs and of ctest's other entries, what FILTER names.
run_filtered() {
  local preset=$1 program found before=$passed
  shift
  for program in "$@"; do
    found=$("build/$preset/bin/$program" --count --test-case="*$filter*" | sed -n 's/.*unskipped test cases.*: *//p')
    [ "${found:-0}" -gt 0 ] && check "$preset: $program" "build/$preset/bin/$program" --test-case="*$filter*"
  done
  if grep -q "{\"[^\"]*$filter" tests/capi/main.c; then
    check "$preset: kvq_capi_tests" "build/$preset/bin/kvq_capi_tests" "$filter"
  fi
  # Not grep -q, which leaves while ctest still writes, so that the pipe would fail.
  if ctest --preset "$preset" --show-only --tests-regex "$filter" | grep 'Test *#' >/dev/null; then
    check "$preset: ctest" ctest --preset "$preset" --timeout 1200 --tests-regex "$filter"
  fi
  [ "$passed" -gt "$before" ] && return
  failures+=("no test's name contains \"$filter\"")
  count 0 1
}

# build_and_test PRESET OPTIONS...
build_and_test() {
  local preset=$1
  shift
  build "$preset" all "$@" || return
  if [ -n "$filter" ]; then
    run_filtered "$preset" kvq_unit_tests kvq_conformance kvq_samples_tests
  else
    run_tests "$preset"
  fi
}

quick() {
  build release "kvq_unit_tests kvq_capi_tests" || return
  if [ -n "$filter" ]; then
    run_filtered release kvq_unit_tests
  else
    run_tests release kvq_unit_tests kvq_capi_tests
  fi
}

format() {
  find include src cuda samples tests tools -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
    xargs -n 32 -P "$jobs" clang-format --dry-run -Werror
}

# Every source once, though some are compiled into the library and the plug-in. Of tests and samples, eight of a program
# are read as one, since their headers are most of the work; the analyzer, which is for the others, wants each alone.
tidy() {
  local clang_tidy=clang-tidy
  ! command -v clang-tidy-22 >/dev/null || clang_tidy=clang-tidy-22
  rm -rf build/tidy/once
  mkdir -p build/tidy/once
  python3 - <<'PYTHON' | xargs -d '\n' -n 1 -P "$jobs" $clang_tidy -quiet -p build/tidy/once 2>&1 |
import collections, json, os, pathlib, shutil

root, once = pathlib.Path.cwd(), pathlib.Path("build/tidy/once").absolute()
commands = json.loads(pathlib.Path("build/tidy/compile_commands.json").read_text())
sources = {each["file"]: each for each in reversed(commands) if each["file"].endswith((".c", ".cpp"))}
read, together = [], collections.defaultdict(list)
for source, each in sorted(sources.items()):
    path = pathlib.Path(source).relative_to(root)
    target = each["command"].split(" -o ")[1].split(".dir/")[0]
    if path.parts[0] in ("samples", "tests") and path.suffix == ".cpp" and path.name not in ("main.cpp", "failing_new.cpp"):
        together[path.parts[0], target].append(each)
    elif path.parts[0] != "tools":
        read.append(each)
for number, ((room, target), all_of_it) in enumerate(together.items()):
    folder = once / room
    folder.mkdir(exist_ok=True)
    shutil.copy(root / room / ".clang-tidy", folder)
    for begin in range(0, len(all_of_it), 8):
        unit = folder / f"{number}_{begin}.cpp"
        unit.write_text("".join(f'#include "{each["file"]}"\n' for each in all_of_it[begin:begin + 8]))
        first = all_of_it[begin]
        read.append({**first, "file": str(unit), "command": first["command"].replace(first["file"], str(unit))})
(once / "compile_commands.json").write_text(json.dumps(read))
print("\n".join(each["file"] for each in read))
PYTHON
    sed '/^[0-9]* warnings* generated\.$/d' # of others' headers
}

has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

style() {
  check "format" format
  check "includes" tests/style/includes.sh
  # Nothing is built there: clang-tidy reads how sources would be compiled.
  check "tidy: configure" cmake --preset tidy "-DKVQ_CUDA=$(has_nvcc && echo ON || echo OFF)"
  check "tidy" tidy
  check "reference" cmake --build build/tidy --target kvq_reference
}

# language NAME SCRIPT: its tests get the folder that the library is installed in and one for what they build. Their last
# line is "N passed, N failed".
language() {
  local name="bindings: $1" log="$logs/bindings--$1.log" result status
  step "$name" "$2" "$PWD/build/bindings/prefix" "$PWD/build/bindings/$1"
  status=$?
  [ $status -ne 77 ] || return 0
  result=$(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
  # shellcheck disable=SC2086
  count ${result:-0 1}
  [ $status -eq 0 ] && [ -n "$result" ] || failures+=("$name")
}

# Python's packages come from PyPI, into a folder of their own.
python_packages() {
  python3 -m venv build/bindings/venv &&
    build/bindings/venv/bin/pip install --quiet --disable-pip-version-check -r bindings/python/requirements-test.txt
}

# The same, while something compiles; end_python_packages waits for it, and does it if it was not begun or has failed.
packages_job=
begin_python_packages() {
  python_packages >"$logs/python-packages.log" 2>&1 &
  packages_job=$!
}
end_python_packages() { [ -n "$packages_job" ] && wait "$packages_job" || python_packages; }

# bindings PRESET: of a build that is there or is made.
bindings() {
  local preset=$1 test name
  scripts/setup.sh --bindings || echo "bindings: not everything could be installed"
  build "$preset" "kvq kvq_static kvq_cli" || return
  check "bindings: install" cmake --install "build/$preset" --prefix build/bindings/prefix
  if [[ python-transformers == *$filter* ]]; then
    step "bindings: PyPI" end_python_packages || echo "bindings: tests of Python take what python3 has"
    [ ! -x build/bindings/venv/bin/python ] || export PYTHON=$PWD/build/bindings/venv/bin/python
  fi
  for test in bindings/*/test.sh bindings/*/test_*.sh; do
    name=$(sed 's|bindings/||; s|/test_|-|; s|/test||; s|\.sh$||' <<<"$test")
    [[ $name != *$filter* ]] || language "$name" "$test"
  done
}

# The build with CUDA has everything that the one without has.
everything() {
  local preset=cuda
  if ! has_nvcc; then
    preset=release
    echo "cuda: skipped, no nvcc"
  fi
  scripts/setup.sh --bindings || echo "bindings: not everything could be installed"
  begin_python_packages
  build_and_test $preset -DKVQ_BUILD_BENCHMARKS=ON
  bindings $preset
  build_and_test sanitize
  style
}

level=${1:-everything}
filter=${2:-}
case $level in
  everything | quick | style) run=$level ;;
  cpu) run="build_and_test release -DKVQ_BUILD_BENCHMARKS=ON" ;;
  cuda | sanitize) run="build_and_test $level" ;;
  bindings) run="bindings release" ;;
  *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac

mkdir -p "$logs"
if ! scripts/setup.sh --test; then
  echo "0 passed, 1 failed"
  exit 1
fi

$run

[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ]
