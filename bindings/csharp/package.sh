#!/usr/bin/env bash
# Makes the NuGet package: the assembly, its documentation and libraries.
#
#   package.sh OUTPUT_DIR [PREFIX...]   PREFIX is where kvq is installed; by default pkg-config says. Prefixes after the first,
#                                       whose kvq is for other systems, have their names: linux-x86_64, linux-aarch64,
#                                       windows-x86_64
set -euo pipefail

output=${1:?usage: package.sh OUTPUT_DIR [PREFIX...]}
[ $# -ge 2 ] || set -- "$output" "$(pkg-config --variable=prefix kvq)"
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/.*string Version = "\(.*\)".*/\1/p' "$here/Kvq/Enumerations.g.cs")
mkdir -p "$output"
output=$(cd "$output" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/lib/netstandard2.0" "$stage/_rels"
"$here/build.sh" "$stage/lib/netstandard2.0"

# add SYSTEM PREFIX: the library by the name that the loader gets
add() {
  local runtime name=libkvq.so library
  case $1 in
    linux-x86_64) runtime=linux-x64 ;;
    linux-aarch64) runtime=linux-arm64 ;;
    windows-x86_64) runtime=win-x64 name=libkvq.dll ;;
    *) echo "package.sh: NuGet has no name for $1" >&2; exit 1 ;;
  esac
  library=$(find "$2" -name libkvq.so -o -name kvq.dll | head -n 1)
  mkdir -p "$stage/runtimes/$runtime/native"
  cp -L "${library:?there is no library below $2}" "$stage/runtimes/$runtime/native/$name"
}
add "linux-$(uname -m)" "$2"
! command -v strip >/dev/null || strip --strip-unneeded "$stage"/runtimes/*/native/libkvq.so
for prefix in "${@:3}"; do add "$(basename "$prefix")" "$prefix"; done
cp "$here/README.md" "$stage/README.md"
cp "$here/../../LICENSE" "$stage/LICENSE.txt"
cp "$here/../../THIRD_PARTY_NOTICES" "$stage/THIRD_PARTY_NOTICES.txt"

cat >"$stage/Kvq.nuspec" <<END
<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata>
    <id>Kvq</id>
    <version>$version</version>
    <authors>kvq</authors>
    <description>A compressed key/value cache for language models, attended to in compressed form.</description>
    <license type="expression">Apache-2.0</license>
    <readme>README.md</readme>
    <tags>llm attention kv-cache quantization unity godot</tags>
    <dependencies>
      <group targetFramework=".NETStandard2.0" />
    </dependencies>
  </metadata>
</package>
END
cat >"$stage/[Content_Types].xml" <<END
<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
  <Default Extension="nuspec" ContentType="application/octet" />
  <Default Extension="dll" ContentType="application/octet" />
  <Default Extension="so" ContentType="application/octet" />
  <Default Extension="xml" ContentType="application/octet" />
  <Default Extension="md" ContentType="application/octet" />
  <Default Extension="txt" ContentType="application/octet" />
</Types>
END
cat >"$stage/_rels/.rels" <<END
<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Kvq.nuspec" Id="R1" />
</Relationships>
END
rm -f "$output/Kvq.$version.nupkg"
(cd "$stage" && python3 -m zipfile -c "$output/Kvq.$version.nupkg" Kvq.nuspec '[Content_Types].xml' _rels lib runtimes README.md LICENSE.txt \
  THIRD_PARTY_NOTICES.txt)
echo "$output/Kvq.$version.nupkg"
