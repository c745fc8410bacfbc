#!/usr/bin/env bash
# Builds and tests the C# bindings with Mono: everything that this folder says it does.
. "$(dirname "$0")/../testing.sh"
needs mcs mono cc python3 pkg-config
rm -rf "$build" && mkdir -p "$build" && cd "$build" || exit 2
export LD_LIBRARY_PATH=$prefix/lib

compile() {
  mcs -langversion:latest -unsafe -debug -optimize+ -warn:4 -warnaserror -r:Kvq.dll -out:"$1.exe" "${@:2}"
}

same() {
  [ "$1" = "$2" ] || { printf 'expected: %s\nfound:    %s\n' "$1" "$2"; return 1; }
}

# block LANGUAGE [NUMBER]: the README's first one, or another one.
block() {
  awk -v begin="\`\`\`$1" -v wanted="${2:-1}" '$0 == "```" {on = 0} on {print} $0 == begin {on = ++found == wanted}' \
    "$here/README.md"
}

# Debian has no formatter for C# (clang-format's breaks documentation and `fixed`).
written_by_hand_as_agreed() {
  local file fine=0
  while read -r file; do
    [ "$(wc -l <"$file")" -le 400 ] || { echo "$file has more than 400 lines"; fine=1; }
    ! LC_ALL=C.UTF-8 grep -nHE '.{121}|[[:space:]]$|	' "$file" || fine=1
  done < <(find "$here" -name '*.cs' ! -name '*.g.cs')
  return "$fine"
}

documentation_refers_to_what_there_is() {
  ! grep -n 'cref="!:' Kvq.xml
}

all_tests() {
  local log=tests.log result
  KVQ_BINDINGS=$root/bindings timeout 120 mono --debug Tests.exe | tee $log
  result=$(tail -n 1 $log | sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p')
  [ -n "$result" ] || return 1
  # shellcheck disable=SC2086
  count $result
}

# What Mono's compiler made, on the runtime of .NET, if there is one.
tests_run_on_dotnet() {
  cat >dotnet.json <<END
{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"}, "rollForward": "LatestMajor",
                    "configProperties": {"System.Globalization.Invariant": true}}}
END
  dotnet exec --runtimeconfig dotnet.json Tests.exe
}

sample_prints_what_it_prints_in_C() {
  embed_in_c embed && compile Embed "$here/Samples/Embed.cs" && same "$(./embed)" "$(mono Embed.exe)"
}

an_old_library_is_refused() {
  local line="libkvq 0.9.1? has API version 0; these bindings need $needed or a later one (0, $needed, 0.9.1?)"
  mkdir -p old && cc -shared -fPIC "$here/Tests/Programs/old_library.c" -o old/libkvq.so &&
    compile OldLibrary "$here/Tests/Programs/OldLibrary.cs" &&
    same "$(printf '%s\n' "$line" "$line" "$line")" "$(LD_LIBRARY_PATH=$PWD/old mono OldLibrary.exe)"
}

# As its reader would: in a clean folder, the commands as they are printed.
readme_works() {
  rm -rf readme && mkdir readme && ln -s "$root/bindings" readme/bindings
  block csharp >readme/First.cs
  block sh >readme/commands.sh
  (cd readme && env -u LD_LIBRARY_PATH bash -e commands.sh) | tee readme/printed
  grep -qxE '100 tokens, [0-9]{1,2}\.[0-9]{2} bits per scalar' readme/printed
}

# But for what `strip` takes out, if there is one.
is_the_installed_library() {
  cp -L "$prefix/lib/libkvq.so" installed.so && { ! command -v strip >/dev/null || strip --strip-unneeded installed.so; } &&
    cmp installed.so "$1"
}

package_has_what_NuGet_looks_for() {
  local native
  rm -rf package && mkdir package && "$here/package.sh" package "$prefix" || return
  (cd package && python3 -m zipfile -e Kvq.*.nupkg content && cd content && find . -type f | LC_ALL=C sort >../files)
  native=$(find package/content/runtimes -type f)
  same "./Kvq.nuspec
./LICENSE.txt
./README.md
./THIRD_PARTY_NOTICES.txt
./[Content_Types].xml
./_rels/.rels
./lib/netstandard2.0/Kvq.dll
./lib/netstandard2.0/Kvq.xml
./${native#package/content/}" "$(cat package/files)" &&
    python3 -c 'import glob, sys, xml.dom.minidom as xml
for name in ("Kvq.nuspec", "[Content_Types].xml", "_rels/.rels", "lib/netstandard2.0/Kvq.xml"):
    xml.parse("package/content/" + name)' && is_the_installed_library "$native"
}

# A program around the README's method for spans.
spans_as_the_README_has_them() {
  printf '%s\n' 'using System; using Kvq; static class Spans {' "$(block csharp 2)" 'static void Main() {
    using (var context = new Context())
    using (var cache = new Cache(context, new CacheOptions { NLayers = 1, QHeads = 1, KvHeads = 1, HeadDim = 8 }))
    using (var sequence = new Sequence(cache)) {
      var x = new float[32];
      for (int i = 0; i < x.Length; ++i) x[i] = i;
      Append(sequence, new ReadOnlySpan<float>(x, 0, 16), new ReadOnlySpan<float>(x, 16, 16));
      var v = new float[16];
      sequence.Decode(0, 0, 0, 2, null, v);
      Console.WriteLine("{0} {1} {2}", sequence.Length(0), v[0], v[15]); } } }' >Spans.cs
  compile Spans Spans.cs && same "2 16 31" "$(env -u LD_LIBRARY_PATH mono Spans.exe)"
}

# Nothing but what is in the package: the library by way of a dllmap.
package_is_enough() {
  local content=$PWD/package/content native
  native=$(find "$content/runtimes" -name libkvq.so)
  rm -rf consumer && mkdir consumer && cp "$content"/lib/netstandard2.0/* consumer && cd consumer || return
  echo "<configuration><dllmap dll=\"libkvq\" target=\"$native\"/></configuration>" >Kvq.dll.config
  compile Embed "$here/Samples/Embed.cs" && same "$(../embed)" "$(env -u LD_LIBRARY_PATH mono Embed.exe)" &&
    spans_as_the_README_has_them
  local status=$?
  cd ..
  return $status
}

# With everything compiled before and no compiler at run time, as Unity's IL2CPP does it: every hook can be called.
hooks_work_compiled_ahead_of_time() {
  local library status=0
  library=$(dirname "$(readlink -f "$(command -v mono)")")/../lib/mono/4.5
  rm -rf ahead && mkdir ahead && compile ahead/AheadOfTime "$here/Tests/Programs/AheadOfTime.cs" &&
    cp Kvq.dll "$library/mscorlib.dll" ahead && cd ahead || return
  for file in mscorlib.dll Kvq.dll AheadOfTime.exe; do
    MONO_PATH=. mono --aot=full,nodebug $file >$file.log 2>&1 || { cat $file.log; status=1; }
  done
  [ $status -eq 0 ] && same "0 True True True True" "$(MONO_PATH=. mono --full-aot AheadOfTime.exe)" || status=1
  cd ..
  return $status
}

a_call_costs_little() {
  local line
  compile CallCost "$here/Samples/CallCost.cs" && line=$(mono CallCost.exe) && echo "$line" &&
    [[ $line =~ ^append\ [0-9]+\ attend\ [0-9]+$ ]]
}

check "Kvq.dll builds, documented, without warnings" "$here/build.sh" .
check "lines and files are short" written_by_hand_as_agreed
check "documentation refers to what there is" documentation_refers_to_what_there_is
needed=$(sed -n 's/.*int ApiVersion = \([0-9]*\);/\1/p' "$here/Kvq/Enumerations.g.cs")
check "the tests build" compile Tests "$here"/Tests/*.cs
check "the tests run" all_tests
grep -E '^(skipped|FAILED)' tests.log
if command -v dotnet >/dev/null; then check "the tests run on .NET" tests_run_on_dotnet; fi
check "the sample prints what it prints in C" sample_prints_what_it_prints_in_C
check "an older library is refused" an_old_library_is_refused
check "the README's commands and example work" readme_works
check "the package has what NuGet looks for" package_has_what_NuGet_looks_for
check "the package is enough to run a program" package_is_enough
check "hooks work compiled ahead of time" hooks_work_compiled_ahead_of_time
check "a call is timed" a_call_costs_little
cat log
finish
