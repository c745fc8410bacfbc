"""The Python package's generated files: ctypes declarations of everything in kvq.h, descriptions as dataclasses, and simple
methods."""
import re
import textwrap

from emitters import _python_objects
from emitters._text import NOTICE, flag_text, is_flag, paragraphs

FOLDER = "bindings/python/libkvq/"
WIDTH = 120
INTEGERS = {"size_t": "c_size_t", **{"%s_t" % name: "c_%s" % name for name in
                                     ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}}
ENUMERATION = "c_int32"


def prose(text):
    """Documentation without Doxygen's markup: names as Python code."""
    text = re.sub(r"(?<!`)(?:::)?\b((?:kvq|qp)_\w+)::(\w+)(?!`)", r"``\1.\2``", text)
    text = re.sub(r"(?<!`)::(\w+)(?!`)", r"``\1``", text)
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def wrapped(text, indent, first="", later=""):
    return textwrap.wrap(text, WIDTH - 3 - indent, initial_indent=first, subsequent_indent=later, break_long_words=False,
                         break_on_hyphens=False)


def body_of(text, indent):
    """Lines of a docstring, one list for each paragraph."""
    for kind, part in paragraphs(text):
        if kind == "code":
            yield ["    " + line if line else "" for line in prose(part).replace("``", "`").split("\n")]
        elif kind == "list":
            yield [line for item in part for line in wrapped(prose(item), indent, "- ", "  ")]
        else:
            yield wrapped(prose(part), indent)


def docstring(blocks, indent):
    """A docstring of blocks of lines, indented."""
    lines = [line for block in blocks if block for line in block + [""]][:-1]
    pad = " " * indent
    if not lines:
        return []
    if len(lines) == 1 and indent + len(lines[0]) + 6 <= WIDTH:
        end = ' """' if lines[0].endswith('"') else '"""'
        return ['%s"""%s%s' % (pad, lines[0], end)]
    if len(lines) == 1:
        lines = lines[0].rsplit(" ", 1)  # ruff joins the quotes to a single line, however long
    return ['%s"""%s' % (pad, lines[0])] + [(pad + line).rstrip() for line in lines[1:]] + [pad + '"""']


def ctype(kind, in_struct=False):
    """The ctypes type of a type. Numbers in memory are addresses: an int, or in arguments a ctypes array or byref()."""
    if kind["kind"] in ("handle", "struct", "hook"):
        return kind["name"]
    if kind["kind"] == "integer":
        return INTEGERS[kind["name"]]
    if kind["kind"] == "enumeration":
        return ENUMERATION
    if kind["kind"] == "float":
        return "c_" + kind["name"]
    if kind["kind"] == "character":
        return "c_char"
    if kind["kind"] == "array":
        return "%s * %d" % (ctype(kind["of"]), kind["count"])
    assert kind["kind"] == "pointer", kind
    to = kind["to"]
    if to["kind"] == "handle":
        return to["name"]
    if to["kind"] == "character":
        return "c_char_p"
    if to["kind"] == "struct":
        return "POINTER(%s)" % to["name"]
    if to["kind"] == "pointer" and to["to"]["kind"] in ("handle", "character") and not in_struct:
        return "POINTER(%s)" % ctype(to)
    return "c_void_p"


def annotation(kind):
    """The Python type that a struct's field reads as."""
    if kind["kind"] in ("integer", "enumeration"):
        return "int"
    if kind["kind"] == "float":
        return "float"
    if kind["kind"] == "hook":
        return "Any"
    if kind["kind"] == "array":
        return "Text" if kind["of"]["kind"] == "character" else "Any"
    if kind["to"]["kind"] == "character":
        return "Optional[Text]"
    return "Any"


def enumeration_lines(one):
    if one["name"] is None:
        lines = []
        for value in one["values"]:
            lines += ["%s = %d" % (value["name"], value["value"])] + docstring(body_of(value["documentation"], 0), 0)
        return lines + [""]
    lines = ["", "class %s(IntEnum):" % one["name"]] + docstring(body_of(one["documentation"], 4), 4) + [""]
    for value in one["values"]:
        lines += ["    %s = %d" % (value["name"], value["value"])] + docstring(body_of(value["documentation"], 4), 4)
    lines += ["", ""] + ["%s = %s.%s" % (value["name"], one["name"], value["name"]) for value in one["values"]]
    return lines + [""]


def struct_lines(one):
    lines = ["", "class %s(Structure):" % one["name"]] + docstring(body_of(one["documentation"], 4), 4) + [""]
    for field in one["fields"]:
        lines += ["    %s: %s" % (field["name"], annotation(field["type"]))]
        lines += docstring(body_of(field["documentation"], 4), 4)
    lines += ["", "    _fields_ = ["]
    lines += ['        ("%s", %s),' % (field["name"], ctype(field["type"], True)) for field in one["fields"]]
    return lines + ["    ]", ""]


def signature(one):
    return "%s(%s)" % (one["name"], ", ".join("%s: %s" % (parameter["name"], parameter["c"])
                                               for parameter in one["parameters"]))


def callable_doc(one, heading, indent):
    """Blocks of the docstring of a function or a hook."""
    yield wrapped(prose("%s%s -> %s" % (heading, signature(one), one["returns"]["c"])), indent)
    if one["experimental"]:
        yield ["Experimental: may change in a minor version."]
    yield from body_of(one["documentation"], indent)
    yield [line for parameter in one["parameters"] if parameter["documentation"]
           for line in wrapped(prose("%s: %s" % (parameter["name"], parameter["documentation"])), indent, "- ", "  ")]
    if one["returns"]["documentation"]:
        yield wrapped(prose("Returns " + one["returns"]["documentation"]), indent)
    if one.get("threads"):
        yield wrapped(prose("Threads: " + one["threads"]), indent)


def function_lines(one):
    returns = one["returns"]["type"]
    result = "None" if returns["kind"] == "void" else ctype(returns)
    types = ['"%s": %s' % (parameter["name"], ctype(parameter["type"])) for parameter in one["parameters"]]
    arguments = ["    {%s}," % ", ".join(types)]
    if len(arguments[0]) > WIDTH:
        arguments = ["    {"] + ["        %s," % name for name in types] + ["    },"]
    doc = docstring(callable_doc(one, "", 4), 4)
    # An argument, not a docstring: nothing dedents it, so only its first line is indented.
    doc = [doc[0]] + [line[4:] for line in doc[1:]]
    lines = ["%s = library.function(" % one["name"], '    "%s",' % one["name"], "    %s," % result] + arguments
    lines += doc[:-1] + [doc[-1] + ","]
    return lines + (["    experimental=True,"] if one["experimental"] else []) + [")"]


def hook_lines(one):
    returns = one["returns"]["type"]
    result = "None" if returns["kind"] == "void" else ctype(returns)
    arguments = ", ".join([result] + [ctype(parameter["type"]) for parameter in one["parameters"]])
    return ["%s = CFUNCTYPE(%s)" % (one["name"], arguments)] + docstring(callable_doc(one, "A hook: ", 0), 0) + [""]


def native(api):
    lines = []
    for one in api["constants"]:
        lines += ["%s = %d" % (one["name"], one["value"])] + docstring(body_of(one["documentation"], 0), 0)
    lines.append("")
    for one in api["enumerations"]:
        lines += enumeration_lines(one)
    for one in api["handles"]:
        lines += ["", "class %s(c_void_p):" % one["name"]] + docstring(body_of(one["documentation"], 4), 4) + [""]
    lines.append("")
    for one in api["hooks"]:
        lines += hook_lines(one)
    for one in api["structs"]:
        lines += struct_lines(one)
    lines += ["", "library = Library(KVQ_API_VERSION)", ""]
    for one in api["functions"]:
        lines += function_lines(one)
    return "\n".join(native_head(api, "\n".join(lines)) + lines) + "\n"


def native_head(api, body):
    """The module docstring and the imports that `body` needs."""
    lines = docstring([["kvq.h in ctypes: every function, struct, enumeration and hook under its C name."],
                       wrapped("Pointers to numbers and to tensors are addresses (c_void_p): an int, in arguments also a "
                               "ctypes array or byref(). Functions release the GIL while they run. " + NOTICE, 0),
                       *body_of(api["documentation"], 0)], 0)
    used = ["CFUNCTYPE", "POINTER", "Structure"] + sorted(set(re.findall(r"\bc_[a-z]\w*", body)))
    lines += ["", "from __future__ import annotations", "", "from ctypes import ("]
    lines += ["    %s," % name for name in used]
    return lines + [")", "from enum import IntEnum", "from typing import Any, Optional", "",
                    "from ._library import Library", "", "Text = bytes  # some fields are named bytes", ""]


def described(api):
    """Structs that functions fill for a caller to read."""
    return [one for one in api["structs"] if one["name"].endswith(("_info", "_usage"))]


def class_name(struct):
    name = "".join(part.capitalize() for part in re.sub(r"^(kvq|qp)_", "", struct["name"]).split("_"))
    return name


def info_value(field):
    kind = field["type"]
    value = "it." + field["name"]
    if kind["kind"] == "enumeration":
        return "name_of(_native.%s, %s)" % (kind["name"], value)
    if kind["kind"] == "pointer" or kind["kind"] == "array" and kind["of"]["kind"] == "character":
        return "text(%s)" % value
    if is_flag(field):
        return value + " != 0"
    return "tuple(%s)" % value if kind["kind"] == "array" else value


def info_type(field):
    kind = field["type"]
    if kind["kind"] in ("pointer", "enumeration") or kind["kind"] == "array" and kind["of"]["kind"] == "character":
        return "str"
    if kind["kind"] == "array":
        return "Tuple[%s, ...]" % annotation(kind["of"])
    return "bool" if is_flag(field) else annotation(kind)


def infos(api):
    lines = docstring([["Descriptions of the library's objects, as dataclasses."], [NOTICE]], 0)
    lines += ["", "from __future__ import annotations", "", "from dataclasses import dataclass", "from typing import Tuple",
              "", "from . import _native", "from ._text import name_of, text", "", "__all__ = ["]
    stable = sorted(class_name(one) for one in described(api) if not one["experimental"])
    lines += ['    "%s",' % name for name in stable] + ["]", ""]
    for struct in described(api):
        fields = [field for field in struct["fields"] if not field["name"].startswith(("struct_size", "reserved"))]
        lines += ["", "@dataclass(frozen=True)", "class %s:" % class_name(struct)]
        lines += docstring(body_of(struct["documentation"], 4), 4) + [""]
        for field in fields:
            lines += ["    %s: %s" % (field["name"], info_type(field))]
            lines += docstring(body_of(flag_text(field), 4), 4)
        lines += ["", "    @classmethod", "    def _of(cls, it: _native.%s) -> %s:" % (struct["name"], class_name(struct)),
                  "        return cls("]
        lines += ["            %s=%s," % (field["name"], info_value(field)) for field in fields]
        lines += ["        )", ""]
    return "\n".join(lines)


def emit(api):
    return {FOLDER + "_native.py": native(api), FOLDER + "_infos.py": infos(api),
            FOLDER + "_objects.py": _python_objects.objects(api, NOTICE, docstring, body_of, class_name)}
