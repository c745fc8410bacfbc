#!/usr/bin/env bash
# Builds a program with the crates alone: kvq-sys compiles the library that it contains, which takes minutes.
#   rust.sh FOLDER
set -euo pipefail

folder=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

command -v cargo >/dev/null || { echo "skipped: there is no cargo"; exit 77; }
cd "$work"
for crate in "$folder"/kvq-*.crate; do tar -xf "$crate"; done
mv kvq-sys-*/ sys
mv kvq-[0-9]*/ kvq
mkdir src
cp kvq/examples/embed.rs src/main.rs
cat >Cargo.toml <<'END'
[package]
name = "consumer"
version = "0.0.0"
edition = "2021"

[dependencies]
kvq = { path = "kvq", features = ["bundled"] }

[patch.crates-io]
kvq-sys = { path = "sys" }

[workspace]
END
unset KVQ_DIR
PKG_CONFIG=/nonexistent cargo build --quiet --offline
printed=$(target/debug/consumer)
[[ $printed == *bits* ]] || { echo "FAILED: the sample printed: $printed" >&2; exit 1; }
needed=$(readelf -d target/debug/consumer | awk '/NEEDED/ {print $NF}')
[[ -n $needed && $needed != *kvq* && $needed != *yaml* ]] || { echo "FAILED: the program needs $needed" >&2; exit 1; }
echo "ok: a program with the crates alone"
