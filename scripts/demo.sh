#!/usr/bin/env bash
# Builds the kvq program and runs its demonstration on the embedded model. Arguments go to `kvq demo`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
{
  cmake --preset release -DKVQ_BUILD_SAMPLES=ON -DKVQ_BUILD_TESTS=OFF -DKVQ_BUILD_BENCHMARKS=OFF
  cmake --build --preset release --parallel "$(nproc)" --target kvq_cli
} >&2 # standard output belongs to the demonstration
exec build/release/bin/kvq demo "$@"
