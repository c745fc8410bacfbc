"""Reads kvq.h with libclang into the model that the emitters use (see README.md in this folder)."""
import re
import sys

try:
    from clang import cindex
except ImportError:  # Debian's python3-clang under another Python
    sys.path.append("/usr/lib/python3/dist-packages")
    from clang import cindex

from clang.cindex import CursorKind, TypeKind

MARKS = ("nullable", "length", "memory", "keeps", "parent", "destroy", "values")
SECTIONS = ("param", "returns", "threads", "since")

# Replaces the machine's headers, so that every machine produces the same model.
STANDARD_HEADERS = [
    ("standard/stddef.h", "typedef __SIZE_TYPE__ size_t;\n"),
    ("standard/stdint.h", "".join(
        "typedef __%s_TYPE__ %s_t;\n" % (name.upper(), name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"))),
]
POINTER_WIDTH = 64
ARGUMENTS = ["-x", "c", "-std=c99", "--target=x86_64-linux-gnu", "-nostdinc", "-Istandard"]


class HeaderError(Exception):
    """The header is not valid C, or uses constructs that kvq.h may not."""


def translation_unit(path, text, *arguments):
    unit = cindex.Index.create().parse(
        path, ARGUMENTS + list(arguments), [(path, text)] + STANDARD_HEADERS,
        cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD | cindex.TranslationUnit.PARSE_INCOMPLETE)
    for diagnostic in unit.diagnostics:
        if diagnostic.severity >= cindex.Diagnostic.Warning:
            raise HeaderError("%s:%d: %s" % (path, diagnostic.location.line, diagnostic.spelling))
    return unit


def bare(comment):
    return re.sub(r"^/\*\*<?|\*/$", "", (comment or "").strip())


def clean(comment):
    """The text of a comment without its frame."""
    return re.sub(r"\n\s*\*? ?", "\n", bare(comment)).strip("\n ")


def lines_of(comment):
    """Like clean, but keeps indentation relative to the frame, which marks code."""
    lines = bare(comment).split("\n")
    framed = [re.sub(r"^\s*\*( {1,2})?", "", line) if re.match(r"\s*\*( |$)", line) else line.strip() for line in lines]
    return "\n".join(line.rstrip() for line in framed).strip()


def split_marks(text):
    """Splits a comment into prose and marks {name: argument}."""
    parts = re.split(r"\\(%s)\b" % "|".join(MARKS), text)
    marks = {name: " ".join(value.split()) for name, value in zip(parts[1::2], parts[2::2])}
    return parts[0].strip(), {name: True if name in ("nullable", "values") else value for name, value in marks.items()}


def split_sections(text):
    """Splits a function's comment into prose, {parameter: text} and {section: text}."""
    parts = re.split(r"\\(%s)\b" % "|".join(SECTIONS), text)
    parameters, sections = {}, {}
    for name, value in zip(parts[1::2], parts[2::2]):
        if name == "param":
            parameter, _, value = value.strip().partition(" ")
            parameters[parameter.strip()] = value.strip()
        else:
            sections[name] = value.strip()
    return parts[0].strip(), parameters, sections


def one_paragraph(text):
    return " ".join(text.split())


def described(text):
    """Prose and marks of one field, parameter or result."""
    prose, marks = split_marks(text)
    return {"documentation": one_paragraph(prose), **marks}


class Reader:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.integers, self.handles, self.structs, self.hooks = set(), set(), set(), set()
        self.model = {"constants": [], "enumerations": [], "handles": [], "hooks": [], "structs": [], "functions": []}

    def read(self):
        stable = {cursor.spelling for cursor in self.cursors(translation_unit(self.path, self.text)) if cursor.spelling}
        unit = translation_unit(self.path, self.text, "-DKVQ_EXPERIMENTAL")
        cursors = list(self.cursors(unit))
        for cursor in cursors:
            self.note_type(cursor)
        pending = None  # an integer whose enumerators follow
        for cursor in cursors:
            experimental = bool(cursor.spelling) and cursor.spelling not in stable
            if cursor.kind == CursorKind.TYPEDEF_DECL and cursor.spelling in self.integers:
                prose, marks = split_marks(lines_of(cursor.raw_comment))
                pending = {"name": cursor.spelling, "type": cursor.underlying_typedef_type.spelling,
                           "documentation": prose, "experimental": experimental,
                           "closed": bool(marks.get("values")), "line": cursor.location.line, "values": []}
                self.model["enumerations"].append(pending)
            elif cursor.kind == CursorKind.ENUM_DECL:
                self.read_enumerators(cursor, pending)
                pending = None
            elif cursor.kind == CursorKind.STRUCT_DECL and cursor.spelling in self.structs:
                self.read_struct(cursor, experimental)
            elif cursor.kind == CursorKind.STRUCT_DECL and cursor.spelling in self.handles:
                pass
            elif cursor.kind == CursorKind.TYPEDEF_DECL and cursor.spelling in self.handles:
                prose, marks = split_marks(lines_of(cursor.raw_comment))
                self.model["handles"].append({"name": cursor.spelling, "documentation": prose, "parents": [], **marks,
                                              "experimental": experimental, "line": cursor.location.line})
            elif cursor.kind == CursorKind.TYPEDEF_DECL and cursor.spelling in self.hooks:
                self.read_hook(cursor, experimental)
            elif cursor.kind == CursorKind.FUNCTION_DECL:
                self.read_function(cursor, experimental)
            elif cursor.kind == CursorKind.MACRO_DEFINITION:
                self.read_macro(cursor)
        self.connect()
        return self.model

    def cursors(self, unit):
        for cursor in unit.cursor.get_children():
            if cursor.location.file is not None and cursor.location.file.name == self.path:
                yield cursor

    def note_type(self, cursor):
        if cursor.kind == CursorKind.STRUCT_DECL:
            (self.structs if cursor.is_definition() else self.handles).add(cursor.spelling)
        elif cursor.kind == CursorKind.TYPEDEF_DECL:
            underlying = cursor.underlying_typedef_type
            if underlying.kind == TypeKind.POINTER:
                self.hooks.add(cursor.spelling)
            elif underlying.spelling.startswith("struct ") or underlying.get_canonical().kind == TypeKind.RECORD:
                pass  # the typedef of a struct or handle repeats its name
            else:
                self.integers.add(cursor.spelling)
        self.handles -= self.structs

    def type_of(self, kind):
        """A type as a tree; see README.md."""
        if kind.kind == TypeKind.ELABORATED:
            kind = kind.get_named_type()
        const = kind.is_const_qualified()
        if kind.kind == TypeKind.POINTER:
            return self.const({"kind": "pointer", "to": self.type_of(kind.get_pointee())}, const)
        if kind.kind == TypeKind.CONSTANTARRAY:
            return {"kind": "array", "of": self.type_of(kind.element_type), "count": kind.element_count}
        if kind.kind == TypeKind.VOID:
            return self.const({"kind": "void"}, const)
        name = re.sub(r"^(const |struct )*", "", kind.spelling)
        for names, of_kind in ((self.handles, "handle"), (self.structs, "struct"), (self.hooks, "hook"), (self.integers, "enumeration")):
            if name in names:
                return self.const({"kind": of_kind, "name": name}, const)
        if name in ("float", "double"):
            return self.const({"kind": "float", "name": name}, const)
        if name == "char":
            return self.const({"kind": "character", "name": name}, const)
        if re.fullmatch(r"u?int(8|16|32|64)_t|size_t", name):
            return self.const({"kind": "integer", "name": name}, const)
        raise HeaderError("%s: bindings do not support the type %s" % (self.path, kind.spelling))

    @staticmethod
    def const(kind, is_const):
        return {**kind, "const": True} if is_const else kind

    @staticmethod
    def spelling(cursor_type):
        return re.sub(r"\s*\*\s*", "*", cursor_type.spelling).replace("*const", "* const")

    def read_enumerators(self, cursor, pending):
        if pending is None:
            pending = {"name": None, "type": "int32_t", "documentation": lines_of(cursor.raw_comment),
                       "experimental": False, "closed": True, "line": cursor.location.line, "values": []}
            self.model["enumerations"].append(pending)
        for value in cursor.get_children():
            pending["values"].append({"name": value.spelling, "value": value.enum_value,
                                      "documentation": one_paragraph(clean(value.raw_comment))})

    def read_struct(self, cursor, experimental):
        one = {"name": cursor.spelling, "documentation": lines_of(cursor.raw_comment), "experimental": experimental,
               "size": cursor.type.get_size(), "alignment": cursor.type.get_align(), "init": None,
               "line": cursor.location.line, "fields": []}
        for field in cursor.get_children():
            if field.kind != CursorKind.FIELD_DECL:
                raise HeaderError("%s:%d: %s has a member that is not a field" % (self.path, field.location.line, one["name"]))
            one["fields"].append({"name": field.spelling, "c": self.spelling(field.type), "type": self.type_of(field.type),
                                  "offset": cursor.type.get_offset(field.spelling) // 8, "size": field.type.get_size(),
                                  **described(clean(field.raw_comment))})
        self.model["structs"].append(one)

    def parameters(self, cursor, texts):
        return [{"name": parameter.spelling, "c": self.spelling(parameter.type), "type": self.type_of(parameter.type),
                 **described(texts.get(parameter.spelling, ""))}
                for parameter in cursor.get_children() if parameter.kind == CursorKind.PARM_DECL]

    def result(self, kind, text):
        return {"c": self.spelling(kind), "type": self.type_of(kind), **described(text)}

    def read_hook(self, cursor, experimental):
        prose, texts, sections = split_sections(lines_of(cursor.raw_comment))
        proto = cursor.underlying_typedef_type.get_pointee()
        self.model["hooks"].append({"name": cursor.spelling, "documentation": prose, "experimental": experimental,
                                    "line": cursor.location.line,
                                    "returns": self.result(proto.get_result(), sections.get("returns", "")),
                                    "parameters": self.parameters(cursor, texts)})

    def read_function(self, cursor, experimental):
        prose, texts, sections = split_sections(lines_of(cursor.raw_comment))
        one = {"name": cursor.spelling, "documentation": prose, "experimental": experimental,
               "line": cursor.location.line,
               "returns": self.result(cursor.result_type, sections.get("returns", "")),
               "parameters": self.parameters(cursor, texts),
               "threads": one_paragraph(sections.get("threads", "")), "since": sections.get("since", "")}
        unknown = sorted(set(texts) - {parameter["name"] for parameter in one["parameters"]})
        if unknown:
            raise HeaderError("%s:%d: %s describes a parameter %s that it does not have" %
                              (self.path, one["line"], one["name"], unknown[0]))
        self.model["functions"].append(one)

    def read_macro(self, cursor):
        tokens = [token.spelling for token in cursor.get_tokens()]
        if len(tokens) == 2 and re.fullmatch(r"(KVQ|QP)_\w+", tokens[0]) and tokens[1].isdigit():
            comment = re.search(r"/\*\*(?!<)((?:(?!\*/).)*)\*/\n(?:#define [^\n]*\n)*#define %s " % tokens[0], self.text, re.S)
            self.model["constants"].append({"name": tokens[0], "value": int(tokens[1]), "line": cursor.location.line,
                                            "documentation": lines_of("/**%s*/" % comment[1]) if comment else ""})

    def connect(self):
        """Adds facts that follow from several declarations."""
        functions = {one["name"]: one for one in self.model["functions"]}
        for struct in self.model["structs"]:
            init = struct["name"] + "_init"
            struct["init"] = init if init in functions else None
        for handle in self.model["handles"]:
            for one in self.model["functions"]:
                for parameter in one["parameters"]:
                    if parameter["c"] == handle["name"] + "**" and "parent" in parameter:
                        parent = self.handle_named(one, parameter["parent"])
                        if parent not in handle["parents"]:
                            handle["parents"].append(parent)
            handle["parents"].sort()

    def handle_named(self, function, path):
        """The type of `context`, a parameter, or of `trainer.context`, the object that a parameter was created from."""
        name, _, field = path.partition(".")
        if field:
            return next((one["name"] for one in self.model["handles"] if one["name"].endswith("_" + field)), field)
        return next((parameter["type"]["to"]["name"] for parameter in function["parameters"] if parameter["name"] == name),
                    name)


def file_comment(text):
    """The comment at the start of the header, without the marks, which only generators need."""
    comment = re.search(r"/\*\* \\file.*?\*/", text, re.S)
    prose = lines_of(comment[0]).partition("\\brief ")[2] if comment else ""
    return prose.partition("\nMarks in the comments")[0].strip()


def read(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    model = Reader(path, text).read()
    version = {one["name"]: one["value"] for one in model["constants"]}
    return {
        "format": 1,
        "header": "kvq.h",
        "version": "%d.%d.%d" % tuple(version.get("KVQ_VERSION_" + part, 0) for part in ("MAJOR", "MINOR", "PATCH")),
        "api_version": version.get("KVQ_API_VERSION", 0),
        "pointer_width": POINTER_WIDTH,
        "documentation": file_comment(text),
        **model,
    }
