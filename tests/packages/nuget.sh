#!/usr/bin/env bash
# Runs a program in C# on what the NuGet package has, as `dotnet publish` lays it out, on .NET for Linux and for Windows, which
# PyPI has.
#   nuget.sh FOLDER      PYTHON (python3) needs pip
set -euo pipefail

package=$(realpath "$1"/Kvq.*.nupkg)
python=${PYTHON:-python3}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

command -v mcs >/dev/null || { echo "skipped: there is no mcs"; exit 77; }
cd "$work"
"$python" -m zipfile -e "$package" package
mkdir app
cp -r package/lib/netstandard2.0/Kvq.dll package/runtimes app
mcs -r:app/Kvq.dll -out:app/Embed.dll -target:exe "$root/bindings/csharp/Samples/Embed.cs"
cat >app/Embed.runtimeconfig.json <<'END'
{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"}, "rollForward": "LatestMajor",
                    "configProperties": {"System.Globalization.Invariant": true}}}
END
"$python" - >app/Embed.deps.json <<'EOF'
import json
import pathlib

target = ".NETCoreApp,Version=v3.1"
natives = [path.relative_to("app") for path in pathlib.Path("app").glob("runtimes/*/native/*")]
kvq = {"runtime": {"lib/netstandard2.0/Kvq.dll": {}},
       "runtimeTargets": {str(path): {"rid": path.parts[1], "assetType": "native"} for path in natives}}
embed = {"dependencies": {"Kvq": "1.0.0"}, "runtime": {"Embed.dll": {}}}
print(json.dumps({"runtimeTarget": {"name": target}, "targets": {target: {"Embed/1.0.0": embed, "Kvq/1.0.0": kvq}},
                  "libraries": {"Embed/1.0.0": {"type": "project", "serviceable": False, "sha512": ""},
                                "Kvq/1.0.0": {"type": "package", "serviceable": False, "sha512": ""}}}))
EOF

# runs RID PLATFORM COMMAND...: the sample on .NET of PyPI's wheel for this platform, in the folder $rid/dotnetcore2/bin
runs() {
  local rid=$1 platform=$2 printed
  [ -d "app/runtimes/$rid" ] || return 0
  if ! "$python" -m pip download --quiet --no-deps --only-binary=:all: --platform "$platform" -d "$rid" dotnetcore2 2>log; then
    echo "skipped: $rid, $(tail -n 1 log)"
    return 0
  fi
  "$python" -m zipfile -e "$rid"/*.whl "$rid"
  chmod -R +x "$rid/dotnetcore2/bin"
  printed=$(env -u LD_LIBRARY_PATH WINEPATH='' "${@:3}" app/Embed.dll 2>&1) || fail "$rid: $printed"
  [[ $printed == *bits* ]] || fail "$rid: the sample printed: $printed"
  echo "ok: the sample on .NET, $rid"
}
if [ "$(uname -m)" = x86_64 ]; then runs linux-x64 manylinux1_x86_64 linux-x64/dotnetcore2/bin/dotnet; fi
if "$root/cmake/toolchains/wine.sh" --version >/dev/null 2>&1; then
  runs win-x64 win_amd64 "$root/cmake/toolchains/wine.sh" win-x64/dotnetcore2/bin/dotnet.exe
fi
