#!/usr/bin/env bash
# Builds and tests the Rust bindings, offline.
. "$(dirname "$0")/../testing.sh"
needs cargo rustc cc pkg-config
cd "$here" || exit 1
library=$(pkg-config --variable=libdir kvq)
export CARGO_NET_OFFLINE=true CARGO_TARGET_DIR=$build CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
export RUSTFLAGS="-D warnings" RUSTDOCFLAGS="-D warnings" KVQ_DIR=$prefix
export KVQ_TEST_CFLAGS="$(pkg-config --cflags --libs kvq) -Wl,-rpath,$library"

# One step: its output is shown if it fails, and the tests in it are counted, or the step as one.
step() {
  local name=$1 log="$build/step.log" begin=$SECONDS
  shift
  if "$@" > "$log" 2>&1; then
    local tests=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
    count $((tests > 0 ? tests : 1)) 0
    echo "ok: $name ($((SECONDS - begin)) s$([ "$tests" -gt 0 ] && echo ", $tests tests"))"
    grep -E '^(skipped:|append [0-9])' "$log" | sort -u
  else
    local tests=$(awk '/^test result:/ { sum += $4; bad += $6 } END { print sum + 0, (bad > 0 ? bad : 1) }' "$log")
    # shellcheck disable=SC2086
    count $tests
    cat "$log"
    echo "FAILED: $name"
  fi
}

with_library() { LD_LIBRARY_PATH=$library "$@"; }

# Without rpath or LD_LIBRARY_PATH: libkvq.a is in the program.
static_program() {
  cargo build --features static --example embed --target-dir "$build/static" || return 1
  "$build/static/debug/examples/embed" > "$build/static.txt" || return 1
  ! readelf -d "$build/static/debug/examples/embed" | grep 'libkvq' || return 1
  "$build/debug/examples/embed" | diff - "$build/static.txt"
}

# A program in a clean folder, on what package.sh makes, with the library that pkg-config finds.
package_consumed() (
  unset KVQ_DIR
  folder=$build/consumer
  rm -rf "$folder" && mkdir -p "$folder/src" || exit 1
  bash "$here/package.sh" "$folder" "$prefix" && cd "$folder" || exit 1
  for crate in *.crate; do tar -xf "$crate" || exit 1; done
  sys=$(echo kvq-sys-*/) kvq=$(echo kvq-[0-9]*/)
  cat > Cargo.toml << END
[package]
name = "consumer"
version = "0.0.0"
edition = "2021"

[dependencies]
kvq = { path = "${kvq%/}" }

[patch.crates-io]
kvq-sys = { path = "${sys%/}" }

[workspace]
END
  cp "$kvq/examples/embed.rs" src/main.rs
  CARGO_TARGET_DIR=$folder/target cargo build || exit 1
  LD_LIBRARY_PATH=$library target/debug/consumer | diff - <("$build/debug/examples/embed")
)

call_cost() { cargo run --quiet --release --example call_cost; }
no_library() {
  local said
  said=$(KVQ_DIR=/nonexistent cargo check --package kvq-sys --target-dir "$build/none" 2>&1) && return 1
  echo "$said"
  grep -q "KVQ_DIR is /nonexistent, but there is no libkvq.so below it" <<< "$said"
}

if cargo fmt --version > /dev/null 2>&1; then step "formatting" cargo fmt --all --check; fi
if cargo clippy --version > /dev/null 2>&1; then
  step "clippy" cargo clippy --workspace --all-targets --features experimental -- -D warnings
fi
step "without experimental parts" cargo check --workspace --all-targets
step "examples" cargo build --examples --features experimental
step "tests" cargo test --workspace --tests --features experimental -- --nocapture
step "documentation's examples" with_library cargo test --workspace --doc --features experimental
step "documentation" cargo doc --workspace --no-deps
step "documentation of experimental parts" cargo doc --workspace --no-deps --features experimental
step "a library that is not there is a plain error" no_library
private=$(pkg-config --static --libs-only-l kvq | tr ' ' '\n' | grep -v -x -e -lkvq)
if cc -shared -o /dev/null $private 2> /dev/null; then
  step "static library" static_program
else
  echo "skipped: libraries that libkvq.a needs are missing"
fi
step "package" package_consumed
step "call cost" call_cost
finish
