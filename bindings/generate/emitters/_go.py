"""Names, types and documentation in Go."""
import re
import textwrap

from emitters._text import indexed, paragraphs, target_of

INITIALISMS = {"api", "bf16", "cpu", "cuda", "f16", "f32", "fp16", "id", "isa", "kv", "ldlq", "lse", "ok", "yaml"}
NUMBERS = {"int32_t": "int32", "int64_t": "int64", "uint32_t": "uint32", "uint64_t": "uint64", "size_t": "uintptr",
           "float": "float32", "double": "float64", "char": "byte"}
WIDTH = 112


def pascal(name):
    return "".join(word.upper() if word in INITIALISMS else word[:1].upper() + word[1:]
                   for word in name.lower().split("_"))


def camel(name):
    """Of parameters; `error` is a type of Go's."""
    first, _, rest = {"error": "err"}.get(name, name).partition("_")
    return first + pascal(rest)


def exported(name):
    """kvq_cache_describe is raw.CacheDescribe, KVQ_E_LIMIT is raw.ELimit, qp_linear is raw.Linear."""
    return pascal(re.sub(r"^(kvq|qp)_", "", name, flags=re.I))


class Names:
    """What everything of the header is called in Go. Two of the same name are an error of this program."""

    def __init__(self, api):
        self.api, self.known = api, indexed(api)
        self.go = {name: exported(name) for name in self.known}
        self.go.update({one["name"]: "Header" + exported(one["name"]) for one in api["constants"]})
        self.go.update({value["name"]: exported(value["name"]) for one in api["enumerations"] for value in one["values"]})
        self.fields = {field["name"]: pascal(field["name"]) for one in api["structs"] for field in one["fields"]}
        # What package kvq has too, where a comment need not point into package raw.
        self.shared = {one["name"] for one in api["structs"] if one["name"].endswith(("_info", "_usage", "_layout"))}
        for one in api["enumerations"]:
            if one["name"] != "kvq_status":
                self.shared.update([one["name"], *(value["name"] for value in one["values"])])
        twice = {name for name in self.go.values() if list(self.go.values()).count(name) > 1}
        if twice:
            raise SystemExit("FAILED: more than one thing would be called %s in Go" % ", ".join(sorted(twice)))

    def has_pointers(self, kind):
        """Whether one may hold pointers as far as cgo knows, which then looks into Go's memory behind a pointer to one at
        every call, and for opaque handles even allocates: such pointers go to C as those of bytes."""
        if kind["kind"] == "struct":
            return any(self.has_pointers(field["type"]) for field in self.known[kind["name"]]["fields"])
        return kind["kind"] in ("pointer", "hook", "void", "handle")

    def type(self, kind, name=""):
        """A type in Go; a `user` or a stream is a number, so that it never is a Go pointer."""
        if kind["kind"] == "pointer":
            if kind["to"]["kind"] == "void":
                return "uintptr" if is_token(kind, name) else "unsafe.Pointer"
            return "*" + self.type(kind["to"])
        if kind["kind"] == "array":
            return "[%d]%s" % (kind["count"], self.type(kind["of"]))
        return NUMBERS.get(kind["name"]) or self.go[kind["name"]]

    def reference(self, name, prefix):
        name, _, field = name.partition("::")
        prefix = "" if name in self.shared else prefix
        if field:
            return "[%s%s.%s]" % (prefix, self.go[name], pascal(field))
        return "[%s%s]" % (prefix, self.go[name])

    def prose(self, text, parameters=(), prefix="", fields=()):
        """Text whose references are Go's; `fields` of the struct at hand are {name in C: in Go}."""
        text = re.sub(r"::((?:kvq|qp)_\w+|(?:KVQ|QP)_\w+)",
                      lambda it: self.reference(it[1], prefix) if it[1] in self.go else it[1], text)
        text = re.sub(r"\b((?:kvq|qp)_\w+::\w+)", lambda it: self.reference(it[1], prefix), text)
        text = re.sub(r"(?<![\w/.\[])((?:kvq|qp|KVQ|QP)_\w+)(?:\(\))?",
                      lambda it: self.reference(it[1], prefix) if it[1] in self.go else it[0], text)

        def quoted(it):
            if it[1] in parameters:
                return camel(it[1])
            known = {**self.fields, **dict(fields)}
            return known[it[1]] if it[1] in known and ("_" in it[1] or it[1] in fields) else it[0]

        return re.sub(r"`(\w+)`", quoted, text).replace("NULL", "nil")

    def comment(self, text, parameters=(), indent="", prefix="", fields=()):
        """A doc comment as gofmt would write it."""
        lines = []
        for kind, part in paragraphs(text):
            if kind == "list" and lines and lines[-1].startswith("\t"):
                lines += ["", "Parameters:"]  # or gofmt takes the list as more code
            if lines and not (kind == "list" and lines[-1].strip()[-1:] != "."):
                lines.append("")
            width = WIDTH - 3 - 4 * len(indent)
            if kind == "code":
                lines += ["\t" + line if line else "" for line in part.split("\n")]
            elif kind == "list":
                for item in part:
                    lines += textwrap.wrap(self.prose(item, parameters, prefix, fields), width, initial_indent="  - ",
                                           subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
            else:
                lines += textwrap.wrap(self.prose(part, parameters, prefix, fields), width, break_on_hyphens=False,
                                       break_long_words=False)
        return "".join("%s//%s%s\n" % (indent, "" if not line or line[0] == "\t" else " ", line) for line in lines)

    def declaration(self, go_name, text, one=None, parameters=(), prefix=""):
        """The comment of something declared: begins with its name, says where it stands in C."""
        if one is not None and one.get("experimental"):
            text += "\n\nExperimental: may change in a minor version."
        text = text.strip()
        return self.comment("%s: %s" % (go_name, text[:1].lower() + text[1:] if text.split(None, 1)[0][1:].islower() else text)
                            if text else go_name + ".", parameters, prefix=prefix)


def described(it):
    """What is said of a parameter or field, with those of the header's marks that matter in Go too."""
    text, kind = it["documentation"], it["type"]
    notes = [text] if text else []
    is_pointer = kind["kind"] == "pointer" and not is_token(kind, it["name"])
    if is_pointer and it.get("nullable") and "NULL" not in text:
        notes.append("May be nil.")
    if is_pointer and it.get("length", "string") not in ("string", "1"):
        notes.append("Elements: %s." % it["length"])
    if it.get("keeps") == "released":
        notes.append("Used until the context is released.")
    return " ".join(notes)


def is_token(kind, name):
    """A void* that is only handed around: never memory of Go."""
    return kind["kind"] == "pointer" and kind["to"]["kind"] == "void" and (name.endswith("user") or name == "stream")


def is_list_of_pointers(kind):
    """Pointers to the host's memory: cgo lets no list of them pass, so it is a base and offsets."""
    return (kind["kind"] == "pointer" and kind["to"]["kind"] == "pointer" and
            target_of(kind)["kind"] in ("void", "character"))
