#!/usr/bin/env bash
# Installs the Debian packages into a separate root, compiles and runs programs against them there, and removes them.
# The machine itself does not change.
#   debian.sh BUILD_DIR C_COMPILER     makes the packages from a build
#   debian.sh --packages FOLDER C_COMPILER
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for tool in dpkg dpkg-deb dpkg-shlibdeps dpkg-gensymbols fakeroot file gzip pkg-config; do
  command -v $tool >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

if [ "$1" = --packages ]; then
  folder=$2
  cc=$3
else
  cc=$2
  folder=$work/packages
  (cd "$1" && cpack -G DEB -B "$folder") >"$work/log" 2>&1 || fail "cpack: $(cat "$work/log")"
fi
names=(libkvq1 libkvq-dev)
compgen -G "$folder/kvq-tools_*.deb" >/dev/null && names+=(kvq-tools) # not in a build without samples
packages=()
for name in "${names[@]}"; do packages+=("$folder/$name"_*.deb); done

# field PACKAGE NAME
field() { dpkg-deb -f "$folder/$1"_*.deb "$2"; }
depends=$(field libkvq1 Depends)
[[ $depends == *libc6* && $depends == *libstdc++6* ]] || fail "libkvq1 depends on: $depends"
others=$(awk -v RS=', *' '$1 !~ /^(libc6|libgcc-s1|libstdc[+][+]6|libyaml-0-2)$/ {print $1}' <<<"$depends")
[ -z "$others" ] || fail "libkvq1 depends on $others"
version=$(field libkvq1 Version)
[[ "$(field libkvq-dev Depends)" =~ ^libkvq1\ \(=\ $version\)(,\ libyaml-dev)?$ ]] || fail "libkvq-dev depends on: $(field libkvq-dev Depends)"
for package in "${packages[@]}"; do
  [ "$(dpkg-deb -f "$package" Architecture)" = "$(dpkg --print-architecture)" ] || fail "$package: architecture"
done

# A root that lists this machine's packages, so that dependencies are checked, without their files.
root=$work/root
admin=$work/admin
mkdir -p "$root" "$admin"/{info,updates,triggers}
cp /var/lib/dpkg/status "$admin/"
cp /var/lib/dpkg/info/{format,*.list} "$admin/info/"
in_root() {
  fakeroot dpkg --instdir="$root" --admindir="$admin" --log="$work/dpkg.log" --force-script-chrootless "$@" >"$work/log" 2>&1
}
in_root --install "${packages[@]}" || fail "dpkg --install: $(tail -n 20 "$work/log")"
echo "ok: $(basename -a "${packages[@]}" | xargs) installed"

library=$(find "$root" -name 'libkvq.so.1')
libdir=$(dirname "$library")
for name in "${names[@]}"; do
  [ -s "$root/usr/share/doc/$name/copyright" ] || fail "$name has no copyright file"
done
grep -qx 'activate-noawait ldconfig' "$admin/info"/libkvq1*.triggers || fail "ldconfig is not triggered"

# The list of symbols matches the library: with -c4 any difference is an error.
mkdir "$work/debian" && echo 'Source: kvq' >"$work/debian/control"
(cd "$work" && dpkg-gensymbols -c4 -plibkvq1 -v"$version" -P"$root" -I"$(echo "$admin/info"/libkvq1*.symbols)" -e"$library" -O/dev/null) \
  >"$work/log" 2>&1 || fail "symbols: $(cat "$work/log")"
echo "ok: symbols"

export PKG_CONFIG_PATH=$libdir/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs kvq)"
"$cc" -std=c99 "$here/../install/consumer/consumer.c" -o "$work/consumer" "${flags[@]}" -lm || fail "the consumer does not compile"
LD_LIBRARY_PATH=$libdir "$work/consumer" >/dev/null || fail "the consumer failed"
echo "ok: a program built against libkvq-dev"

# Programs that use only stable functions depend on this version or later, others on exactly this version.
dpkg-deb -R "$folder"/libkvq1_*.deb "$work/unpacked"
depends_of() {
  (cd "$work" && dpkg-shlibdeps -S"$work/unpacked" -l"$work/unpacked${libdir#"$root"}" -O -e"$1") 2>"$work/log" ||
    fail "dpkg-shlibdeps: $(cat "$work/log")"
}
[[ $(depends_of consumer) == *"libkvq1 (>= 1.0"* ]] || fail "the consumer depends on: $(depends_of consumer)"
cat >"$work/trainer.c" <<<'#define KVQ_EXPERIMENTAL
#include <kvq.h>
int main(void) { kvq_router_trainer_destroy(NULL); return 0; }'
"$cc" -std=c99 "$work/trainer.c" -o "$work/trainer" "${flags[@]}" || fail "the experimental program does not compile"
[[ $(depends_of trainer) == *"libkvq1 (= $version)"* ]] || fail "the experimental program depends on: $(depends_of trainer)"
echo "ok: dpkg-shlibdeps"

if [ -e "$root/usr/bin/kvq" ]; then
  kvq() { LD_LIBRARY_PATH=$libdir "$root/usr/bin/kvq" "$@"; }
  kvq info >"$work/log" 2>&1 || fail "kvq info: $(cat "$work/log")"
  kvq demo --quick >"$work/log" 2>&1 || fail "kvq demo: $(cat "$work/log")"
  grep -q int4 "$work/log" || fail "kvq demo printed: $(cat "$work/log")"
  [ -s "$root/usr/share/man/man1/kvq.1.gz" ] || fail "kvq-tools has no manual page"
  echo "ok: kvq info, kvq demo"
fi

in_root --purge "${names[@]}" || fail "dpkg --purge: $(cat "$work/log")"
left=$(find "$root" ! -type d)
[ -z "$left" ] || fail "left after removal: $left"
echo "ok: nothing is left after removal"
