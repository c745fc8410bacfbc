"""C# names and documentation of the declarations in kvq.h."""
import re
import textwrap
from xml.sax.saxutils import escape

from emitters._text import NOTICE, paragraphs

INTEGERS = {"int8_t": "sbyte", "int16_t": "short", "int32_t": "int", "int64_t": "long", "uint8_t": "byte",
            "uint16_t": "ushort", "uint32_t": "uint", "uint64_t": "ulong", "size_t": "UIntPtr"}
RAW, IDIOMATIC = "Kvq.Raw", "Kvq"


def pascal(name):
    """`key_true_bits` and `LEAST_SQUARES` as KeyTrueBits and LeastSquares."""
    return "".join(part[:1].upper() + part[1:].lower() for part in name.split("_") if part)


def type_name(name):
    return pascal(re.sub(r"^(kvq|qp)_", "", name))


def property_name(struct, field):
    """The property of a field; it may not have the name of its class."""
    name = pascal(field["name"])
    return name + "Value" if name == type_name(struct["name"]) else name


# Structs whose fields are parameters of methods.
WITHOUT_CLASS = ("kvq_compress_options", "kvq_load_options", "kvq_step_batch")


def has_class(struct):
    """Whether a struct of the raw layer has a class around it."""
    return not struct["experimental"] and struct["name"] not in WITHOUT_CLASS and \
        struct["name"].endswith(
            ("_options", "_batch", "_call", "_shape", "_range", "_info", "_usage", "_layout"))


def raw_type(it):
    """The type of a field, parameter or result of the raw layer. All are blittable."""
    kind = it["type"]
    if kind["kind"] == "pointer" and kind["to"]["kind"] == "void" and it.get("name", "").endswith(("user", "stream")):
        return "IntPtr"
    return spelled(kind)


def spelled(kind):
    if kind["kind"] == "pointer":
        return "IntPtr" if kind["to"]["kind"] == "handle" else spelled(kind["to"]) + "*"
    if kind["kind"] == "integer":
        return INTEGERS[kind["name"]]
    return {"float": lambda: kind["name"], "character": lambda: "byte", "void": lambda: "void", "hook": lambda: "IntPtr",
            "enumeration": lambda: type_name(kind["name"]), "struct": lambda: kind["name"]}[kind["kind"]]()


class Names:
    """C# names of the header's declarations. Structs are those of the raw layer, or the classes around them."""

    def __init__(self, api, raw):
        self.api, self.raw = api, raw
        self.found, self.local = {}, {}
        for one in api["functions"]:
            self.found[one["name"]] = "%s.%s.%s" % (RAW, self.class_of(one), one["name"])
        for one in api["structs"] + api["hooks"]:
            self.found[one["name"]] = "%s.%s" % (RAW, one["name"])
        for one in api["structs"]:
            if not raw and has_class(one):
                self.found[one["name"]] = "%s.%s" % (IDIOMATIC, type_name(one["name"]))
        for one in api["handles"]:
            if not one["experimental"]:
                self.found[one["name"]] = "%s.%s" % (IDIOMATIC, type_name(one["name"]))
        for one in api["enumerations"]:
            home = type_name(one["name"]) if one["name"] else "Constants"
            if one["name"]:
                self.found[one["name"]] = "%s.%s" % (self.space_of(one), home)
            for value in one["values"]:
                self.found[value["name"]] = "%s.%s.%s" % (self.space_of(one), home, self.member(one, value["name"]))
        for one in api["constants"]:
            self.found[one["name"]] = "%s.Constants.%s" % (IDIOMATIC, pascal(one["name"].partition("_")[2]))

    @staticmethod
    def class_of(function):
        return "ExperimentalNative" if function["experimental"] else "Native"

    @staticmethod
    def space_of(one):
        return RAW if one["experimental"] else IDIOMATIC

    @staticmethod
    def member(enumeration, name):
        """An enumerator's name without the prefix that all enumerators share."""
        if not enumeration["name"]:
            return pascal(name.partition("_")[2])
        parts = [value["name"].split("_") for value in enumeration["values"]]
        shared = 0
        while all(len(part) > shared + 1 and part[shared] == parts[0][shared] for part in parts):
            shared += 1
        return pascal("_".join(part for part in name.split("_")[shared:] if part != "E"))

    def inside(self, struct):
        """Resolves field names to this struct's class from here on."""
        self.local = {} if self.raw else {field["name"]: property_name(struct, field) for field in struct["fields"]}

    def prose(self, text):
        """One line of documentation as XML."""
        pieces = re.split(r"(`[^`]+`)", text)
        return "".join("<c>%s</c>" % escape(self.local.get(piece[1:-1], piece[1:-1])) if index % 2 else
                       self.references(piece) for index, piece in enumerate(pieces))

    def references(self, text):
        def replace(match):
            target = self.found.get(match[1])
            if target is None:
                return match[0]
            if match[2]:
                target += "." + (match[2] if target.startswith(RAW) else pascal(match[2]))
            return '<see\0cref="%s"/>' % target
        text = escape(text).replace("NULL", "null")
        return re.sub(r"(?<!\")(?:::)?\b((?:kvq|qp|KVQ|QP)_\w+)(?:::(\w+))?", replace, text)

    def block(self, tag, lines, indent):
        """An XML element in `///` comments."""
        opening, closing = "<%s>" % tag, "</%s>" % tag.partition(" ")[0]
        width = 118 - len(indent) - 4
        if len(lines) == 1 and "\n" not in lines[0]:
            wrapped = textwrap.wrap(opening + lines[0] + closing, width, break_long_words=False, break_on_hyphens=False)
        else:
            wrapped = [opening]
            for line in lines:
                wrapped += line.split("\n") if "\n" in line else \
                    textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
            wrapped.append(closing)
        return ["%s/// %s" % (indent, line.replace("\0", " ")) if line else indent + "///" for line in wrapped]

    def body(self, text):
        for kind, part in paragraphs(text):
            if kind == "code":
                yield "<code>\n%s\n</code>" % escape(part)
            elif kind == "list":
                items = ["<item><description>%s</description></item>" % self.prose(item) for item in part]
                yield "\n".join(['<list type="bullet">'] + items + ["</list>"])
            else:
                yield "<para>%s</para>" % self.prose(part)

    def documentation(self, one, indent="    ", extra=()):
        """`<summary>` and, if there is more, `<remarks>`."""
        first, _, rest = one["documentation"].strip().partition("\n\n")
        kinds = list(paragraphs(first))
        if len(kinds) > 1:  # a list or code that follows without an empty line
            begin = first.index("\n- " if kinds[1][0] == "list" else "\n    ")
            summary, rest = kinds[0][1], first[begin:] + "\n\n" + rest
        else:
            summary = " ".join(first.split())
        lines = self.block("summary", [self.prose(summary)], indent)
        remarks = list(self.body(rest)) + ["<para>%s</para>" % self.prose(text) for text in extra if text]
        if remarks:
            lines += self.block("remarks", remarks, indent)
        return lines


def file(space, lines, using=("System", "System.Runtime.InteropServices")):
    return "\n".join(["// <auto-generated>" + NOTICE + "</auto-generated>"] + ["using %s;" % one for one in using] +
                     ["", "namespace %s" % space, "{"] + lines + ["}", ""])
