#!/usr/bin/env python3
"""Writes the files generated from include/kvq.h: kvq-api.json, the raw layers of all bindings, and lists for tests.

usage: generate.py [--header FILE] [--root DIR]           write every stale file
       generate.py --check [--header FILE] [--root DIR]   write nothing; name the stale files, exit status 1 if there are any
       generate.py --list                                 list all generated files
"""
import argparse
import importlib
import json
import pathlib
import pkgutil
import sys

import checks
import emitters
import header

ROOT = pathlib.Path(__file__).resolve().parents[2]


def public(model):
    """The model as in kvq-api.json: without line numbers, which every edit of the header moves."""
    if isinstance(model, dict):
        return {key: public(value) for key, value in model.items() if key not in ("line", "closed")}
    return [public(one) for one in model] if isinstance(model, list) else model


def files(model):
    """Every generated file: its path from the root of the repository, and its text."""
    api = public(model)
    found = {"bindings/kvq-api.json": json.dumps(api, indent=1, ensure_ascii=False) + "\n"}
    for module in sorted(pkgutil.iter_modules(emitters.__path__), key=lambda one: one.name):
        if not module.name.startswith("_"):
            found.update(importlib.import_module("emitters." + module.name).emit(api))
    return found


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2])
    parser.add_argument("--header", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    path = arguments.header or arguments.root / "include" / "kvq.h"
    try:
        model = header.read(str(path))
    except header.HeaderError as error:
        sys.exit("FAILED: %s" % error)
    problems = checks.Checker(model, path).check()
    if problems:
        sys.exit("\n".join("FAILED: %s" % problem for problem in problems))
    expected = files(model)
    if arguments.list:
        print("\n".join(sorted(expected)))
        return
    stale = []
    for name, text in sorted(expected.items()):
        file = arguments.root / name
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not arguments.check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    if arguments.check and stale:
        sys.exit("\n".join("FAILED: %s is stale: run bindings/generate/generate.py" % name for name in stale))
    print("ok: %d functions, %d structs, %d files%s" % (len(model["functions"]), len(model["structs"]), len(expected),
                                                      "" if arguments.check else ", %d written" % len(stale)))


if __name__ == "__main__":
    main()
