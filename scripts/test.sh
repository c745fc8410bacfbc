#!/usr/bin/env bash
# Builds and tests. The last line is "N passed, N failed"; the exit status is 0 only if nothing failed.
#   test.sh                       the gate, before a pull request: the optimized build with the CUDA plug-in if nvcc is here
#                                 and all its tests, the library's tests under the sanitizers, the C API's for ARM64 and for
#                                 Windows in emulators, the style checks of what has changed, and the bindings if they or the
#                                 header have
#   test.sh full [PART...]        everything, or the parts that are named:
#     cuda          the optimized build, with kernels for every supported generation of GPUs, and all its tests
#     sanitize      a build with Clang's address and undefined behaviour sanitizers, and all its tests
#     style         formatting, includes between rooms, the reference of the C API, clang-tidy over every source
#     bindings      the library as it is installed, used from every language that is here, and their packages
#     transformers  the integration with the oldest and newest PyTorch and transformers that it supports
#     vllm          the plug-in for vLLM, with vLLM for CPUs: downloads 1 GB the first time
#     llama-cpp     llama.cpp built with kvq, beside its own cache
#     packages      the archive, the Debian packages and those of languages
#     emulator      kernels on the CPU
#     arm64         the library for Linux on ARM64, and its tests, in an emulator
#     i686          the library for Linux on x86 with 32 bits, and its unit and C API tests
#     wasm          the library for WebAssembly, and the C API's tests in Node.js
#     windows       the library and the program for Windows on x86-64, and their tests, in an emulator
#   test.sh LEVEL [FILTER]        a part, for work on it:
#     quick         unit and C API tests of the optimized build without CUDA: minutes the first time, then seconds
#     cpu           the optimized build without CUDA and all its tests
#     cuda, sanitize, bindings, transformers, vllm, llama-cpp, arm64, i686, wasm, windows    as above; tests on a GPU
#                   say that they skip if there is none
#     style         the style checks of what has changed (scripts/changed.sh)
#   FILTER: only test cases whose names contain it, suites of the C API tests, ctest entries or languages of that name
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
logs=build/test-logs
passed=0
failed=0
failures=()
gate_limit=$((45 * 60)) # seconds; what takes it beyond belongs into `full`
filter=
generations=() # of GPUs that kernels are compiled for: an option of CMake, or all


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

fail() {
  count 0 1
  failures+=("$1")
  return 1
}

# check NAME COMMAND...: a step that counts as one test, unless it cannot be run.
check() {
  step "$@"
  case $? in 0) count 1 0 ;; 77) ;; *) fail "$1" ;; esac
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

has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }

# Sets `preset` to the build that has everything, CUDA included where there is a compiler for it.
choose_preset() {
  preset=cuda
  has_nvcc || { echo "cuda: skipped, no nvcc"; preset=release; }
}

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }

# build PRESET TARGETS OPTIONS...: TARGETS is "all", or some with spaces between them. Kernels that no GPU here can run
# are compiled without much optimization.
build() {
  local preset=$1 targets=$2
  shift 2
  if [ "$preset" = cuda ]; then
    set -- "$@" "${generations[@]}"
    has_gpu || set -- "$@" -DKVQ_CUDA_QUICK=ON
  fi
  # shellcheck disable=SC2086
  check "$preset: configure" cmake --preset "$preset" -DKVQ_BUILD_TESTS=ON -DKVQ_BUILD_SAMPLES=ON "$@" &&
    check "$preset: build" cmake --build --preset "$preset" --parallel "$jobs" --target $targets
}

# run_tests PRESET [LABEL]: all tests of a build, or those with a label.
run_tests() {
  local preset=$1
  step "$preset: test" ctest --preset "$preset" --parallel "$jobs" --verbose --timeout 1200 --no-tests=error \
    ${2:+--label-regex "^$2\$"} || failures+=("$preset: test")
  # shellcheck disable=SC2046
  count $(count_tests "$logs/$preset--test.log")
}

# launch PRESET PROGRAM ARGUMENTS...: a program of a build, in the emulator of what it is for.
launch() {
  local preset=$1 program=$2
  shift 2
  case $preset in
    linux-arm64) qemu-aarch64-static "build/$preset/bin/$program" "$@" ;;
    wasm32) node --no-experimental-fetch "build/$preset/bin/$program.js" "$@" ;;
    windows-*) cmake/toolchains/wine.sh "build/$preset/bin/$program.exe" "$@" ;;
    *) "build/$preset/bin/$program" "$@" ;;
  esac
}

# run_filtered PRESET LABEL PROGRAMS...: of these programs, of the C API tests and of ctest's entries, those with the label if it
# is not empty, what FILTER names.
run_filtered() {
  local preset=$1 entries=(--tests-regex "$filter" ${2:+--label-regex "^$2\$"}) program found before=$((passed + failed))
  shift 2
  for program in "$@"; do
    found=$(launch "$preset" "$program" --count --test-case="*$filter*" |
      sed -n 's/.*unskipped test cases.*: *\([0-9]*\).*/\1/p')
    [ "${found:-0}" -eq 0 ] || check "$preset: $program" launch "$preset" "$program" --test-case="*$filter*"
  done
  if grep -q "{\"[^\"]*$filter" tests/capi/main.c; then
    check "$preset: kvq_capi_tests" launch "$preset" kvq_capi_tests "$filter"
  fi
  # Not grep -q, which leaves while ctest still writes, so that the pipe would fail.
  if ctest --preset "$preset" --show-only "${entries[@]}" | grep 'Test *#' >/dev/null; then
    check "$preset: ctest" ctest --preset "$preset" --timeout 1200 "${entries[@]}"
  fi
  [ $((passed + failed)) -gt "$before" ] || fail "no test's name contains \"$filter\""
}

# run_all_or_filtered PRESET PROGRAMS...: all tests of a build, or what FILTER names.
run_all_or_filtered() {
  if [ -n "$filter" ]; then run_filtered "$1" "" "${@:2}"; else run_tests "$1"; fi
}

# build_and_test PRESET OPTIONS...
build_and_test() {
  local preset=$1
  shift
  build "$preset" all "$@" || return
  run_all_or_filtered "$preset" kvq_unit_tests kvq_cpp_tests kvq_conformance kvq_parser_tests kvq_tools_tests
}

# quick PRESET OPTIONS...: unit and C API tests.
quick() {
  local preset=$1
  build "$preset" "kvq_unit_tests kvq_capi_tests kvq_bytes" "${@:2}" || return
  if [ -n "$filter" ]; then
    run_filtered "$preset" quick kvq_unit_tests
  else
    run_tests "$preset" quick
  fi
}

format() {
  find include src cuda samples tests tools integrations -type f -regex '.*\.\(h\|c\|cpp\|cu\|cuh\)' -print0 |
    xargs -0 -n 32 -P "$jobs" clang-format --dry-run -Werror
}

# style SOURCES: of "all", or of those that have changed and that include what has.
style() {
  local changed=()
  if [ "$1" = changed ]; then
    if scripts/changed.sh >"$logs/changed"; then
      changed=(--changed "$logs/changed")
    else
      echo "style: every source, since git does not say what has changed"
    fi
  fi
  check "format" format
  check "includes" tests/style/includes.sh
  # Nothing is built there: clang-tidy reads how sources would be compiled.
  check "tidy: configure" cmake --preset tidy "-DKVQ_CUDA=$(has_nvcc && echo ON || echo OFF)"
  check "tidy" scripts/tidy.py build/tidy "${changed[@]}"
  check "reference" cmake --build build/tidy --target kvq_reference
}

# counted NAME COMMAND...: tests whose last line is "N passed, N failed".
counted() {
  local name=$1 log="$logs/${1//[^a-z0-9]/-}.log" result status
  step "$@"
  status=$?
  [ $status -ne 77 ] || return 0
  result=$(tail -n 1 "$log" | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
  # shellcheck disable=SC2086
  count ${result:-0 1}
  [ $status -eq 0 ] && [ -n "$result" ] || failures+=("$name")
}

# language NAME SCRIPT ARGUMENTS...: its tests get the folder that the library is installed in, one for what they build, and
# the arguments.
language() { counted "bindings: $1" "$2" "$PWD/build/bindings/prefix" "$PWD/build/bindings/$1" "${@:3}"; }

# python_packages NAME: what requirements-NAME.txt of the Python bindings asks for, from PyPI, in a folder of its own.
python_packages() {
  local venv=build/bindings/venv-$1
  python3 -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "bindings/python/requirements-$1.txt"
}

# installed PRESET: the library of a build that is there or is made, with the program, as users have it.
installed() {
  local targets="kvq kvq_static kvq_cli"
  [ "$1" != cuda ] || targets+=" kvq_cuda"
  build "$1" "$targets" && check "bindings: install" cmake --install "build/$1" --prefix build/bindings/prefix
}

# bindings PRESET [REQUIREMENTS]: Python has what these requirements say.
bindings() {
  local requirements=${2:-test} test name found=
  scripts/setup.sh --bindings || echo "bindings: not everything could be installed"
  installed "$1" || return
  if [[ python == *$filter* ]]; then
    step "bindings: PyPI, $requirements" python_packages "$requirements" || echo "bindings: tests of Python take what python3 has"
    [ ! -x "build/bindings/venv-$requirements/bin/python" ] || export PYTHON=$PWD/build/bindings/venv-$requirements/bin/python
  fi
  for test in bindings/*/test.sh; do
    name=$(basename "$(dirname "$test")")
    [ "$name" != vllm ] || continue # a part of its own
    [[ $name != *$filter* ]] || { found=1 && language "$name" "$test"; }
  done
  [ -n "$found" ] || fail "no language's name contains \"$filter\""
}

# transformers PRESET: with what requirements-transformers-*.txt name.
transformers() {
  local requirements name found=
  scripts/setup.sh python3-venv
  installed "$1" || return
  for requirements in bindings/python/requirements-transformers-*.txt; do
    name=$(basename "$requirements" .txt)
    name=${name#requirements-}
    [[ $name == *$filter* ]] || continue
    found=1
    check "bindings: PyPI, $name" python_packages "$name" || continue
    PYTHON=$PWD/build/bindings/venv-$name/bin/python language "$name" bindings/python/test_transformers.sh
  done
  [ -n "$found" ] || fail "no requirements' name contains \"$filter\""
}

# llama_cpp PRESET: llama.cpp's sources come from PyPI; without them the part is skipped.
llama_cpp() {
  local venv=build/llama.cpp/venv
  scripts/setup.sh python3-venv
  build "$1" kvq || return
  mkdir -p build/llama.cpp
  check "llama-cpp: PyPI" eval "python3 -m venv $venv &&
    $venv/bin/pip install --quiet --disable-pip-version-check -r integrations/llama.cpp/requirements.txt" || return
  PYTHON=$PWD/$venv/bin/python KVQ_LIBRARY=$PWD/build/$1/lib/libkvq.so KVQ_INCLUDE=$PWD/include \
    counted "llama-cpp" integrations/llama.cpp/test.sh build/llama.cpp ${filter:+"$filter"}
}

# vllm PRESET: with vLLM for CPUs, and the tests whose names contain FILTER.
vllm() {
  scripts/setup.sh binutils python3-venv
  installed "$1" && language vllm bindings/vllm/test.sh ${filter:+-k "$filter"}
}

bindings_changed() {
  if ! scripts/changed.sh >"$logs/changed" || grep -qE '^(include|bindings)/|^src/kvq\.map$' "$logs/changed"; then return; fi
  echo "bindings: skipped, neither they nor the header have changed"
  return 1
}

gate() {
  choose_preset
  # That of a GPU here, or the one that has kernels of its own.
  generations=("-DCMAKE_CUDA_ARCHITECTURES=$(if has_gpu; then echo native; else echo 90-real; fi)")
  build_and_test "$preset" -DKVQ_BUILD_BENCHMARKS=ON
  ! bindings_changed || bindings "$preset"
  # Not the program, whose commands take longest: what they read of others' files the parser tests read, too.
  build sanitize "kvq_unit_tests kvq_capi_tests kvq_bytes kvq_cpp_tests kvq_conformance kvq_parser_tests" &&
    run_tests sanitize library
  arm64 quick
  windows quick
  style changed
  [ $SECONDS -le $gate_limit ] || echo "warning: the gate took more than the $((gate_limit / 60)) minutes that it may take"
}

# arm64 [quick]: the library for Linux on ARM64 in an emulator with all its tests, or with the C API's that take least.
arm64() {
  step "linux-arm64: Debian packages" scripts/setup.sh --arm64
  if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64-static >/dev/null; then
    echo "linux-arm64: skipped, no compiler or no emulator"
    return
  fi
  if [ "${1:-}" = quick ]; then
    build linux-arm64 kvq_capi_tests -DKVQ_BUILD_SAMPLES=OFF && run_tests linux-arm64 emulated
  else
    build linux-arm64 all -DKVQ_BUILD_SAMPLES=OFF &&
      run_all_or_filtered linux-arm64 kvq_unit_tests kvq_cpp_tests kvq_conformance
  fi
}

# foreign_libraries SYSTEM [--program]: false if there are none.
foreign_libraries() {
  step "$1: libraries" scripts/foreign_libraries.sh "$@"
  case $? in 0) ;; 77) return 1 ;; *) fail "$1: libraries" ;; esac
}

# The library for Linux on x86 with 32 bits, which an x86-64 kernel runs.
i686() {
  step "linux-i686: Debian packages" scripts/setup.sh --i686
  command -v i686-linux-gnu-g++ >/dev/null || { echo "linux-i686: skipped, no compiler"; return; }
  foreign_libraries i686 && quick linux-i686 -DKVQ_BUILD_SAMPLES=OFF
}

# The library for WebAssembly in Node.js, with the C API's tests.
wasm() {
  step "wasm32: Debian packages" scripts/setup.sh --wasm
  command -v em++ >/dev/null || { echo "wasm32: skipped, no compiler"; return; }
  foreign_libraries wasm && build wasm32 all -DKVQ_BUILD_SAMPLES=OFF && run_all_or_filtered wasm32
}

# windows [quick]: as arm64, for Windows on x86-64, and the program, whose libraries take minutes to compile. quick is without it,
# and without what takes longest of the library.
windows() {
  local program=(--program)
  [ "${1:-}" != quick ] || program=()
  step "windows-mingw: Debian packages" scripts/setup.sh --windows
  if ! command -v x86_64-w64-mingw32-g++-posix >/dev/null || ! cmake/toolchains/wine.sh --version >/dev/null 2>&1; then
    echo "windows-mingw: skipped, no compiler or no emulator"
    return
  fi
  foreign_libraries windows "${program[@]}" || return
  if [ "${1:-}" = quick ]; then
    build windows-quick "kvq_capi_tests kvq_bytes" -DKVQ_BUILD_SAMPLES=OFF && run_tests windows-quick emulated
  else
    build windows-mingw all &&
      run_all_or_filtered windows-mingw kvq_unit_tests kvq_cpp_tests kvq_conformance kvq_parser_tests kvq_tools_tests
  fi
}

packages() {
  scripts/setup.sh dpkg-dev fakeroot file
  build "$1" all && check "packages: of the build for tests" tests/packages/debian.sh "build/$1" cc
  check "packages" scripts/package.sh
  check "packages: Rust's library" tests/packages/rust.sh build/packages
}

# The conformance tests that take less than a minute or two there. They must not pass for want of the emulated device.
emulator() {
  has_nvcc || { echo "emulator: skipped, no nvcc"; return; }
  local sources="*/append_test.cpp,*attend_inputs*,*attend_masks*,*attend_sinks*,*attend_strides*,*bounds_test*"
  sources+=",*centred_attend*,*layer_shapes*,*stream_positions*"
  build cuda kvq_emulated_conformance -DKVQ_EMULATED_GPU=ON || return
  check "emulator: test" timeout 1200 build/cuda/emulated/bin/kvq_conformance --source-file="$sources" --no-intro || return
  grep -q ' cuda ' "$logs/emulator--test.log" || fail "emulator: no test ran on the emulated device"
}

full() {
  local part parts=(cuda sanitize style bindings transformers vllm llama-cpp packages emulator arm64 i686 wasm windows)
  for part in "$@"; do
    [[ " ${parts[*]} " == *" $part "* ]] || { echo "test.sh full: there is no part \"$part\"" >&2; exit 2; }
  done
  [ $# -eq 0 ] || parts=("$@")
  choose_preset
  for part in "${parts[@]}"; do
    case $part in
      cuda) build_and_test "$preset" -DKVQ_BUILD_BENCHMARKS=ON ;;
      sanitize) build_and_test sanitize ;;
      style) style all ;;
      bindings) bindings "$preset" transformers-newest ;; # which has PyTorch
      transformers | vllm | packages) "$part" "$preset" ;;
      llama-cpp) llama_cpp "$preset" ;;
      emulator | arm64 | i686 | wasm | windows) "$part" ;;
    esac
  done
}

usage() {
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

level=${1:-gate}
[ $# -le 2 ] || [ "$level" = full ] || usage
needed=--test
case $level in
  gate | style) [ $# -le 1 ] || usage ;;
  full) ;;
  *) filter=${2:-} ;;
esac
case $level in
  gate) run=gate ;;
  full) run="full ${*:2}" ;;
  quick)
    run="quick quick"
    needed=--quick
    ;;
  cpu) run="build_and_test release -DKVQ_BUILD_BENCHMARKS=ON" ;;
  cuda | sanitize) run="build_and_test $level" ;;
  bindings | transformers | vllm) run="$level release" ;;
  llama-cpp) run="llama_cpp release" ;;
  arm64 | i686 | wasm | windows) run=$level ;;
  style) run="style changed" ;;
  *) usage ;;
esac

mkdir -p "$logs"
if ! step "packages of Debian" scripts/setup.sh $needed; then
  echo "0 passed, 1 failed"
  exit 1
fi

$run

[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
echo "$SECONDS s in all"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ ${#failures[@]} -eq 0 ]
