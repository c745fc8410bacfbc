"""What several emitters need."""
import re

NOTICE = "Made by bindings/generate/generate.py from include/kvq.h; edit that instead."


def target_of(kind):
    """What is behind any number of pointers."""
    while kind["kind"] == "pointer":
        kind = kind["to"]
    return kind


def is_flag(field):
    """Whether a field of a struct that the library fills is 1 or 0, which languages have a type for."""
    return field["type"].get("name") == "int32_t" and re.match(r"1(;| or) 0", field["documentation"]) is not None


def flag_text(field):
    """What is said of a field, without the numbers that its type in a language does not have."""
    text = field["documentation"]
    return re.sub(r"^1; 0: ", "If not, ", re.sub(r"^1 or 0\.\s*", "", text)) if is_flag(field) else text


def indexed(api):
    """{name: declaration} of everything that has a name."""
    return {one["name"]: one for group in ("enumerations", "handles", "hooks", "structs", "functions")
            for one in api[group] if one["name"]}


def paragraphs(text):
    """The parts of a comment: ("text", one line), ("list", [lines]) or ("code", text without indentation)."""
    for block in re.split(r"\n{2,}(?!    )", text.strip()):
        lines = block.split("\n")
        begin = 0
        while begin < len(lines):
            kind = kind_of(lines[begin])
            end = begin + 1
            while end < len(lines) and (kind_of(lines[end]) == kind or kind == "list" and lines[end].startswith("  ") or
                                        kind == "code" and not lines[end]):
                end += 1
            part = lines[begin:end]
            if kind == "code":
                yield "code", "\n".join(line[4:] for line in part).strip("\n")
            elif kind == "list":
                items = re.split(r"(?m)^- ", "\n".join(part))[1:]
                yield "list", [" ".join(item.split()) for item in items]
            elif " ".join(part).strip():
                yield "text", " ".join(" ".join(part).split())
            begin = end


def kind_of(line):
    return "code" if line.startswith("    ") else "list" if line.startswith("- ") else "text"
