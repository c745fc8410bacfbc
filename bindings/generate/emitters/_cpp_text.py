"""How C++ is laid out: as clang-format would, within 120 columns."""
import textwrap

from emitters._text import paragraphs

WIDTH = 120


def comment(text, indent=""):
    """A comment of the header as lines of ///."""
    frame = indent + "/// "
    lines = []
    for kind, part in paragraphs(text):
        if lines:
            lines.append(frame.rstrip())
        if kind == "text":
            lines += wrapped(part, frame, frame)
        elif kind == "list":
            for item in part:
                lines += wrapped(item, frame + "- ", frame + "  ")
        else:
            lines += [(frame + "    " + line).rstrip() for line in part.split("\n")]
    return lines


def wrapped(text, first, others):
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False,
                         break_on_hyphens=False)


def call(prefix, arguments, suffix):
    """prefix + arguments + suffix; where that is too long, arguments below each other's first."""
    lines = [prefix]
    for number, argument in enumerate(arguments):
        text = argument + (suffix if number == len(arguments) - 1 else ",")
        if number and len(lines[-1]) + 1 + len(text) > WIDTH:
            lines.append(" " * (prefix.rindex("\n") if "\n" in prefix else len(prefix)) + text)
        else:
            lines[-1] += (" " if number else "") + text
    if not arguments:
        lines[-1] += suffix
    return lines


def function(prefix, parameters, suffix, body, indent="  "):
    """A definition, in one line where it fits."""
    head = call(indent + prefix + "(", parameters, ")" + suffix + " {")
    if len(body) == 1 and len(head) == 1 and len(head[0]) + len(body[0]) + 3 <= WIDTH:
        return [head[0] + " " + body[0] + " }"]
    return head + [line for one in body for line in statement(one, indent + "  ")] + [indent + "}"]


def statement(text, indent):
    """A statement in lines; one that is too long is broken at the commas of its last call, as clang-format does."""
    if len(indent + text) <= WIDTH:
        return [indent + text]
    begin = max(text.find("require_%s%s(" % (what, end)) for what in ("size", "rows") for end in ("", "_or_none"))
    begin = text.index("(", begin) + 1 if begin >= 0 else text.rindex("(", 0, text.index(",")) + 1
    depth, arguments, last = 0, [], begin
    for at in range(begin, len(text)):
        if text[at] in "({":
            depth += 1
        elif text[at] in ")}":
            depth -= 1
            if depth < 0:
                arguments.append(text[last:at].strip())
                return call(indent + text[:begin], arguments, text[at:])
        elif text[at] == "," and depth == 0:
            arguments.append(text[last:at].strip())
            last = at + 1
    return [indent + text]


def constructor(prefix, parameters, initialisers):
    """A constructor that does nothing but initialise."""
    head = call("  " + prefix + "(", parameters, ")")
    if len(head) == 1 and len(head[0] + " : " + ", ".join(initialisers) + " {}") <= WIDTH:
        return [head[0] + " : " + ", ".join(initialisers) + " {}"]
    lines = []
    for number, one in enumerate(initialisers):
        end = " {}" if number == len(initialisers) - 1 else ","
        lines += statement((": " if number == 0 else "  ") + one + end, "      ")
    return head + lines
