#!/usr/bin/env python3
"""Lists what programs built with a header rely on, to compare with a baseline; omits experimental declarations.

usage: lists.py HEADER --constants  the name and value of every constant, without versions
       lists.py HEADER --fields     the place and type of every field of a struct
       lists.py HEADER --library [FIELDS]
                                    a C library that does nothing: all types and functions. Structs have no more
                                    fields than FIELDS has of them, a list of fields
"""
import collections
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "generate"))
import header

GROUPS = ("enumerations", "handles", "hooks", "structs", "functions")


def constants(model):
    for name, value in [(one["name"], one["value"]) for one in model["constants"]] + [
            (value["name"], value["value"]) for one in model["enumerations"] if not one["experimental"]
            for value in one["values"]]:
        if not name.startswith(("KVQ_VERSION_", "KVQ_API_VERSION")):  # changes with releases
            yield "%s %d" % (name, value)


def fields(model):
    for struct in model["structs"]:
        for index, field in enumerate(struct["fields"]):
            if not struct["experimental"]:
                yield "%s %d %s %s" % (struct["name"], index, field["name"], field["c"])


def variable(one):
    kind, bracket, count = one["c"].partition("[")
    return "%s %s%s" % (kind, one["name"], bracket + count)


def parameters(one):
    return ", ".join(variable(parameter) for parameter in one["parameters"]) or "void"


def library(model, known):
    yield "#include <stddef.h>\n#include <stdint.h>"
    ordered = sorted((one["line"], group, one) for group in GROUPS for one in model[group] if not one["experimental"])
    for _, group, one in ordered:
        name = one["name"]
        if group == "enumerations":
            if name:
                yield "typedef %s %s;" % (one["type"], name)
            yield "enum {%s};" % ", ".join("%s = %d" % (value["name"], value["value"]) for value in one["values"])
        elif group == "handles":
            yield "typedef struct %s %s;" % (name, name)
        elif group == "hooks":
            yield "typedef %s (*%s)(%s);" % (one["returns"]["c"], name, parameters(one))
        elif group == "structs":
            kept = one["fields"][: known[name] or None]
            yield "typedef struct %s {%s;} %s;" % (name, "; ".join(variable(field) for field in kept), name)
        else:
            body = "" if one["returns"]["c"] == "void" else " return 0; "
            yield "%s %s(%s) {%s}" % (one["returns"]["c"], name, parameters(one), body)


def main(path, option, *files):
    model = header.read(path)
    if option == "--library":
        known = collections.Counter()
        for file in files:
            with open(file, encoding="utf-8") as lines:
                known.update(line.split()[0] for line in lines)
        found = library(model, known)
    else:
        found = {"--constants": constants, "--fields": fields}[option](model)
    print("\n".join(found))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
