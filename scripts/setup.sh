#!/usr/bin/env bash
# Installs the Debian packages that a build needs, if any are missing. Says nothing when none is.
#   setup.sh [--quick] [--test] [--bindings] [--arm64] [--i686] [--wasm] [--windows] [PACKAGE...]
#     --quick     also what unit and C API tests need
#     --test      also what all tests, the sanitizers and the style checks need
#     --bindings  also the languages that there are bindings for
#     --arm64     also what compiles for Linux on ARM64 elsewhere, and an emulator to run it
#     --i686      also what compiles for Linux on x86 with 32 bits; then foreign_libraries.sh i686
#     --wasm      also what compiles to WebAssembly and runs it; then foreign_libraries.sh wasm
#     --windows   also what compiles for Windows on x86-64, and an emulator; then foreign_libraries.sh windows
#     PACKAGE     further packages to require
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config
  libeigen3-dev libhwy-dev libyaml-dev nlohmann-json3-dev # the library
  libcli11-dev libopenblas-dev libpcre2-dev libutf8proc-dev) # the kvq program
quick_packages=(doctest-dev libglpk-dev)
test_packages=("${quick_packages[@]}" abigail-tools binutils clang clang-format clang-tidy doxygen
  libbenchmark-dev libclang-rt-dev python3 python3-clang)
foreign= # architecture whose packages are needed besides this machine's
# Without them all works, but takes longer: this clang-tidy passes over the system's headers.
faster_packages=()

for argument in "$@"; do
  case $argument in
    --quick)
      packages+=("${quick_packages[@]}")
      faster_packages+=(ccache)
      ;;
    --test)
      packages+=("${test_packages[@]}")
      faster_packages+=(ccache clang-tidy-22)
      ;;
    --bindings)
      packages+=(golang-go mono-mcs mono-runtime python3-venv)
      command -v cargo >/dev/null || packages+=(cargo rustc) # rustup's will do
      ;;
    --arm64)
      foreign=arm64
      packages+=(g++-aarch64-linux-gnu qemu-user-static libstdc++6:arm64 libyaml-dev:arm64)
      ;;
    --i686) packages+=(g++-i686-linux-gnu "${quick_packages[@]}") ;;
    --wasm) packages+=(emscripten "${quick_packages[@]}") ;;
    --windows) packages+=(g++-mingw-w64-x86-64-posix wine64 "${quick_packages[@]}") ;;
    -*) echo "usage: $0 [--quick] [--test] [--bindings] [--arm64] [--i686] [--wasm] [--windows] [PACKAGE...]" >&2; exit 2 ;;
    *) packages+=("$argument") ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not Debian, so the packages cannot be checked. Their Debian names: ${packages[*]}" >&2
  exit 0
fi

# not_installed PACKAGE...
not_installed() {
  local package
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1)" = installed ] || echo "$package"
  done
}

# available PACKAGE...: those of which there is a version to install
available() {
  local package
  for package; do
    ! apt-cache show "$package" >/dev/null 2>&1 || echo "$package"
  done
}

mapfile -t missing < <(not_installed "${packages[@]}")
mapfile -t faster < <(not_installed "${faster_packages[@]}")
mapfile -t known < <(available "${faster[@]}")
[ $((${#missing[@]} + ${#known[@]})) -gt 0 ] || exit 0

add_foreign=()
if [ -n "$foreign" ] && ! { dpkg --print-architecture; dpkg --print-foreign-architectures; } | grep -qx "$foreign"; then
  add_foreign=(dpkg --add-architecture "$foreign")
fi
install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo)
elif [ ${#missing[@]} -eq 0 ]; then
  exit 0
else
  echo "Missing Debian packages: ${missing[*]}" >&2
  echo "Install them as root, then run this again:" >&2
  echo "  ${add_foreign[*]:+${add_foreign[*]} && }apt-get update && ${install[*]}" >&2
  exit 1
fi

[ ${#add_foreign[@]} -eq 0 ] || "${as_root[@]}" "${add_foreign[@]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
"${apt[@]}" update >&2
mapfile -t known < <(available "${faster[@]}")
echo "Installing ${missing[*]} ${known[*]}" >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" "${known[@]}" >&2
