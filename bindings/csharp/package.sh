#!/usr/bin/env bash
# Makes the NuGet package: the assembly, its documentation and libkvq.so.
#
#   package.sh OUTPUT_DIR [PREFIX]   PREFIX is where kvq is installed; by default pkg-config says
set -euo pipefail

output=${1:?usage: package.sh OUTPUT_DIR [PREFIX]}
prefix=${2:-$(pkg-config --variable=prefix kvq)}
here=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/.*string Version = "\(.*\)".*/\1/p' "$here/Kvq/Enumerations.g.cs")
case $(uname -m) in
  x86_64) runtime=linux-x64 ;;
  aarch64) runtime=linux-arm64 ;;
  *) echo "package.sh: NuGet has no name for $(uname -m)" >&2; exit 1 ;;
esac

mkdir -p "$output"
output=$(cd "$output" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/lib/netstandard2.0" "$stage/runtimes/$runtime/native" "$stage/_rels"
"$here/build.sh" "$stage/lib/netstandard2.0"
cp -L "$prefix/lib/libkvq.so" "$stage/runtimes/$runtime/native/libkvq.so"
cp "$here/README.md" "$stage/README.md"
cp "$here/../../LICENSE" "$stage/LICENSE.txt"

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
(cd "$stage" && python3 -m zipfile -c "$output/Kvq.$version.nupkg" Kvq.nuspec '[Content_Types].xml' _rels lib runtimes README.md LICENSE.txt)
echo "$output/Kvq.$version.nupkg"
