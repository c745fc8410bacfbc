#!/bin/bash
# Tests of the Go bindings against an installed kvq: test.sh PREFIX [BUILD_DIR]
. "$(dirname "$0")/../testing.sh"
needs go gofmt cc c++ pkg-config python3
export LD_LIBRARY_PATH="$prefix/lib" GOPROXY=off GOFLAGS= GOWORK=off
export GOTOOLCHAIN=local CGO_CFLAGS="-O2 -Werror -Wall -Wextra -Wno-unused-parameter"
cd "$here" || exit 1

formatted() { [[ -z $(gofmt -l . | tee /dev/stderr) ]]; }

# Every test of Go's counts.
go_tests() {
  go test -tags kvq_experimental -count 1 -v ./... >"$build/tests.log" 2>&1
  local status=$?
  grep -E '^ *(--- |[a-z]\w*_test\.go|panic|#|ok|FAIL|fatal)' "$build/tests.log"
  count "$(grep -c '^--- PASS' "$build/tests.log")" "$(grep -c '^--- FAIL' "$build/tests.log")"
  ((status == 0)) || grep -q '^--- FAIL' "$build/tests.log" || count 0 1 # a crash, or no build
  ((status == 0)) || tail -50 "$build/tests.log"
}

cgo_checks() {
  if [[ $(go env GOVERSION) =~ go1\.(1[0-9]|20)(\.|$) ]]; then
    GODEBUG=cgocheck=2 go test -tags kvq_experimental -count 1 ./...
  else
    GOEXPERIMENT=cgocheck2 go test -tags kvq_experimental -count 1 ./...
  fi
}

same_line_as_c() {
  embed_in_c "$build/embed_c" && go build -o "$build/embed_go" ./samples/embed &&
    diff <("$build/embed_c") <("$build/embed_go")
}

# part NAME: the block of the README that is marked so
part() { awk -v mark="<!-- test: $1 -->" '$0 == mark {on = 1; next} on && /^```/ {if (inside) exit; inside = 1; next} inside' README.md; }

# The README's commands, as they are printed, in an empty folder; $1 is the module's copy that they name.
readme() (
  folder=$build/readme commands="set -e
$(part install)
$(part run)"
  [[ -n $(part install) && -n $(part run) && -n $(part example) ]] || exit 1
  rm -rf "$folder" && mkdir -p "$folder" && part example >"$folder/main.go" && cd "$folder" &&
    KVQ_DIR=$prefix KVQ_SOURCE=$1 bash -c "$commands" | tee /dev/stderr | grep -qx "5.87 bits per scalar"
)

# The same with the zip in place of the repository.
package() {
  rm -rf "$build/package"
  ./package.sh "$build/package" "$prefix" && python3 -m zipfile -e "$build"/package/kvq-go-*.zip "$build/package" &&
    mkdir "$build/package/bindings" && mv "$build"/package/kvq@* "$build/package/bindings/go" && readme "$build/package" &&
    (cd "$build/package/bindings/go" && test -f LICENSE && go vet ./...)
}

# A device for tests of hooks and of what is refused on a GPU, where the repository is at hand.
pretended_device() {
  local version
  version=$(pkg-config --modversion kvq)
  c++ -std=c++20 -O1 -shared -fPIC -fvisibility=hidden -I"$root/include" -I"$root/src" -I"$root/tools" \
    "-DKVQ_VERSION_STRING=\"$version\"" "$root/tests/plugins/pretend.cpp" "$prefix/lib/libkvq.a" -o "$build/pretend.so"
}

if [[ -f $prefix/lib/libkvq.a ]]; then
  check "a pretended device" pretended_device
  export KVQ_TEST_PRETENDED_DEVICE="$build/pretend.so"
fi
check "formatting" formatted
check "go vet" go vet ./...
check "go vet with experimental parts" go vet -tags kvq_experimental ./...
go_tests
check "tests without experimental parts" go test -count 1 ./...
check "tests with the race detector" go test -race -tags kvq_experimental -count 1 ./...
check "tests with all checks of cgo" cgo_checks
check "the sample prints the same line as in C" same_line_as_c
check "the README's commands" readme "$root"
check "the package" package
check "what a call costs" go build -o "$build/call_cost" ./call_cost
"$build/call_cost" || count 0 1
finish
