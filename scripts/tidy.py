#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a build and prints what it finds; then it exits with 1.

usage: tidy.py BUILD [--changed FILE]

BUILD has a compile_commands.json of a configuration with tests and the program that compiles every source alone. FILE lists
changed files of the source tree, a line each: then only these sources are read and those that include one
of them.

Each source of the library and the plug-in is read alone, since the analyzer looks at main files only. Sources of tests and
tools, which have fewer checks, are read eight at a time, since their headers are most of the work; and so are, without the
analyzer, those of the library that include a changed file without having changed themselves.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOGETHER = 8
# Whose sources are read alone in full, and always: .clang-tidy passes over what lies in cuda/ and is included.
ANALYZED, ALWAYS = ("src", "cuda"), ("cuda",)
# doctest itself, an operator new of its own, and sources that Highway includes in themselves
ALWAYS_ALONE = re.compile(r"/(main|doctest_main|failing_new|\w+_(highway|dot_products|kernels|avx512vnni))\.cpp$|\.c$")
# The analyzer reads no includes, and these are includes of sources. What may throw depends on which sources are read together.
INCLUDED_CHECKS = "--checks=-clang-analyzer-*,-bugprone-suspicious-include,-bugprone-exception-escape"
INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def read_commands(build):
    """The command of each source, by its path in the source tree; a source that is compiled twice has one."""
    commands = {}
    for each in reversed(json.loads((build / "compile_commands.json").read_text())):
        path = pathlib.Path(each["file"]).resolve()
        if path.suffix in (".c", ".cpp") and path.is_relative_to(ROOT):
            commands[str(path.relative_to(ROOT))] = each
    return {path: commands[path] for path in sorted(commands) if not path.startswith("tools/codebooks/")}


def included_files(path, folders):
    """What a file of the source tree includes of the source tree; in doubt, more."""
    for name in INCLUDE.findall((ROOT / path).read_bytes()):
        for folder in (os.path.dirname(path), *folders):
            found = os.path.normpath(os.path.join(folder, name.decode()))
            if (ROOT / found).is_file():
                yield found


def all_included(path, folders, known):
    """The same with what those include, and the file itself."""
    found, left = set(), [path]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            if each not in known:
                known[each] = list(included_files(each, folders))
            left.extend(known[each])
    return found


def include_folders(commands):
    """The folders of the source tree where any of the commands looks for headers."""
    found = set()
    for each in commands.values():
        for folder in re.findall(r"-I(\S+)", each["command"]):
            if pathlib.Path(folder).is_relative_to(ROOT):
                found.add(os.path.relpath(folder, ROOT))
    return sorted(found)


def governed(path, changed):
    """Whether a .clang-tidy that has changed is the source's."""
    folder = pathlib.Path(path)
    return any(str(each / ".clang-tidy") in changed for each in folder.parents)


def target_of(command):
    """Its target and its definitions: what is read together has the same."""
    return command["command"].split(" -o ")[1].split(".dir/")[0], *sorted(re.findall(r" -D\S+", command["command"]))


def select(commands, changed):
    """The sources to read in full, and those that have to be read because of what they include."""
    if changed is None:
        return list(commands), []
    in_full = [path for path in commands if path in changed or governed(path, changed)]
    folders, known = include_folders(commands), {}
    dependents = [path for path in commands if path not in in_full and all_included(path, folders, known) & changed]
    return in_full, dependents


def write_units(once, commands, paths, fewer_checks):
    """What to read, as (file, command, arguments): sources alone, or files that include up to eight of a program."""
    together = collections.defaultdict(list)
    for path in paths:
        room = path.split("/")[0]
        if ALWAYS_ALONE.search("/" + path) or room in ALWAYS or (room in ANALYZED and not fewer_checks):
            yield str(ROOT / path), commands[path], [INCLUDED_CHECKS] if fewer_checks else []
        else:
            together[room, target_of(commands[path])].append(path)
    for number, ((room, _), members) in enumerate(together.items()):
        folder = once / room / ("included" if fewer_checks else "changed") / str(number)
        folder.mkdir(parents=True)
        configuration = ROOT / room / ".clang-tidy"
        if configuration.is_file():
            shutil.copy(configuration, once / room)
        for begin in range(0, len(members), TOGETHER):
            unit = folder / f"{begin}.cpp"
            batch = members[begin : begin + TOGETHER]
            unit.write_text("".join(f'#include "{ROOT / path}"\n' for path in batch))
            first = commands[batch[0]]
            command = {**first, "file": str(unit), "command": first["command"].replace(first["file"], str(unit))}
            yield str(unit), command, [INCLUDED_CHECKS] if fewer_checks else []


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--changed", type=argparse.FileType())
    options = parser.parse_args()
    commands = read_commands(options.build)
    if not commands:
        sys.exit(f"tidy.py: {options.build}/compile_commands.json names no source below {ROOT}")
    in_full, dependents = select(commands, set(options.changed.read().splitlines()) if options.changed else None)
    once = (options.build / "once").absolute()
    shutil.rmtree(once, ignore_errors=True)
    once.mkdir()
    units = [*write_units(once, commands, in_full, False), *write_units(once, commands, dependents, True)]
    (once / "compile_commands.json").write_text(json.dumps([command for _, command, _ in units]))
    print(f"{len(in_full)} sources, and {len(dependents)} that include what has changed", flush=True)
    clang_tidy = shutil.which("clang-tidy-22") or "clang-tidy"  # a newer one passes over the system's headers

    def read(unit):
        file, _, arguments = unit
        done = subprocess.run([clang_tidy, "-quiet", "-p", once, *arguments, file], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, re.sub(r"(?m)^\d+ warnings? generated\.\n", "", done.stdout)  # of others' headers

    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        for status, output in threads.map(read, units):
            failed = failed or status != 0
            print(output, end="", flush=True)
    return failed


sys.exit(main())
