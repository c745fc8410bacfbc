#!/usr/bin/env -S python3 -B
"""Formats in docs/guide.md and widths of schemes in docs/weights.md are those that the library knows.
   lists.py LIBRARY"""

import ctypes
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def rows(page, header):
    """Cells of each row of the table with this header."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").split(header + "\n", 1)
    if len(lines) != 2:
        sys.exit(f"FAILED: docs/{page} has no table {header}")
    for line in lines[1].splitlines()[1:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def formats_of_guide():
    names = set()
    for cells in rows("guide.md", "| format | bits | needs |"):
        named = re.findall(r"`([^`]+)`", cells[0])
        plain = [name for name in named if not name.startswith("+") and ":" not in name]
        names.update(plain)
        if "+hadamard" in cells[0]:
            names.update(f"{name}+hadamard" for name in plain)
    return names


def formats_of_header():
    """Names in the list of kvq_policy_load, with +hadamard where it takes that."""
    text = (ROOT / "include" / "kvq.h").read_text(encoding="utf-8")
    listed = text.split("The formats:\n", 1)[1].split("The long form:", 1)[0]
    names = set()
    for item in re.split(r"\n \*  - ", listed)[1:]:
        plain = re.findall(r"`(\w+)`", item.split(":", 1)[0] if item.startswith("`g") else item)
        names.update(plain)
        if "+hadamard" in item:
            names.update(f"{name}+hadamard" for name in plain if name.startswith("int"))
    return names - {"commvq"}


def loads(library, name):
    library.kvq_policy_load.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                        ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p]
    library.kvq_policy_destroy.argtypes = [ctypes.c_void_p]
    context, policy = ctypes.c_void_p(), ctypes.c_void_p()
    if library.kvq_context_create(None, ctypes.byref(context), None) != 0:
        sys.exit("FAILED: no context")
    loaded = library.kvq_policy_load(context, name.encode(), len(name), ctypes.byref(policy), None) == 0
    library.kvq_policy_destroy(policy)
    library.kvq_context_destroy(context)
    return loaded


def widths(cell):
    """"1, 2, 3" and "1.5 … 5 by ½"."""
    span = re.fullmatch(r"([\d.]+) … ([\d.]+) by ½", cell)
    if not span:
        return {float(width) for width in cell.split(", ")}
    first, last = map(float, span.groups())
    return {first + step / 2 for step in range(round((last - first) * 2) + 1)}


def schemes_of_weights():
    names = set()
    for cells in rows("weights.md", "| family | bits b | a step | window | level |"):
        family = cells[0].strip("`")
        names.update("fp16" if family == "fp16" else f"{family}-{width:g}" for width in widths(cells[1]))
    return names


def schemes_of_library(library):
    library.qp_scheme_name.restype = ctypes.c_char_p
    return {library.qp_scheme_name(index).decode() for index in range(library.qp_scheme_count())}


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.kvq_context_create.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p]
    library.kvq_context_destroy.argtypes = [ctypes.c_void_p]
    guide, header = formats_of_guide(), formats_of_header()
    failures = [f"docs/guide.md lacks the format {name} of kvq.h" for name in sorted(header - guide)]
    failures += [f"docs/guide.md has a format that the library refuses: {name}" for name in sorted(guide)
                 if not loads(library, name)]
    described, known = schemes_of_weights(), schemes_of_library(library)
    failures += [f"docs/weights.md lacks the scheme {name}" for name in sorted(known - described)]
    failures += [f"docs/weights.md has a scheme that the library lacks: {name}" for name in sorted(described - known)]
    for failure in failures:
        print("FAILED:", failure, file=sys.stderr)
    if failures:
        return 1
    print(f"ok: {len(guide)} formats and {len(known)} schemes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
