#!/usr/bin/env bash
# Puts what the library needs of others, for Windows on x86-64, into build/windows-libraries, where the preset windows-mingw
# looks: libyaml, compiled from Debian's source, and headers of Debian's packages. Says nothing when they are there.
# Compilers and an emulator of Windows: setup.sh --windows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

libraries=$PWD/build/windows-libraries
[ ! -e "$libraries/lib/libyaml.a" ] || exit 0
mkdir -p "$libraries"/{include,lib,lib/cmake,share/cmake,source}

# Copies, since those in /usr/include are beside Linux's own headers.
cp -RL /usr/include/{hwy,eigen3,nlohmann,doctest} "$libraries/include"
cp -RL /usr/share/eigen3 "$libraries/share"
cp -RL /usr/share/cmake/nlohmann_json "$libraries/share/cmake"
cp -RL /usr/lib/cmake/doctest "$libraries/lib/cmake"

# apt downloads sources only where its lists name some, so it gets lists of its own.
cd "$libraries/source"
mkdir -p lists/partial
sed 's/^Types: .*/Types: deb-src/; s/^deb /deb-src /' /etc/apt/sources.list.d/debian.sources >debian.sources
apt=(apt-get -qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$PWD/parts" -o "Dir::State::Lists=$PWD/lists"
  -o APT::Sandbox::User=)
mkdir -p parts
mv debian.sources parts/
"${apt[@]}" update >&2
"${apt[@]}" source --download-only libyaml >&2
mkdir -p libyaml
tar -xzf libyaml_*.orig.tar.gz -C libyaml --strip-components=1
version=$(sed -n 's/^set *(YAML_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\))/-DYAML_VERSION_\1=\2/p' libyaml/CMakeLists.txt)
strings=$(sed -n 's/^set *(YAML_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\))/\2/p' libyaml/CMakeLists.txt | paste -sd.)
for source in libyaml/src/*.c; do
  # shellcheck disable=SC2086
  x86_64-w64-mingw32-gcc-posix -O2 -DYAML_DECLARE_STATIC $version "-DYAML_VERSION_STRING=\"$strings\"" -Ilibyaml/include \
    -c "$source" -o "$(basename "$source" .c).o"
done
cp libyaml/include/yaml.h "$libraries/include"
x86_64-w64-mingw32-ar rcs libyaml.a ./*.o
mv libyaml.a "$libraries/lib"
