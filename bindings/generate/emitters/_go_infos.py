"""Declarations of the header in package kvq: stable enumerations, and structs that the library fills."""
from emitters._go import pascal
from emitters._text import flag_text, is_flag


def enumerations(names):
    return "\n".join(errors(names, one) if one["name"] == "kvq_status" else enumeration(names, one)
                     for one in names.api["enumerations"] if not one["experimental"])


def enumeration(names, one):
    """Aliases of the raw type and of its values."""
    lines, name = [], one["name"] and names.go[one["name"]]
    if name:
        lines.append(names.declaration(name, one["documentation"], one, prefix="raw.") + "type %s = raw.%s\n" % (name, name))
    lines.append((names.comment(one["documentation"]) if not name else "") + "const (")
    for value in one["values"]:
        go = names.go[value["name"]]
        lines.append(names.comment("%s: %s" % (go, value["documentation"]), indent="\t", prefix="raw.") +
                     "\t%s = raw.%s" % (go, go))
    return "\n".join(lines + [")", ""])


def errors(names, one):
    """The statuses of failures, for errors.Is."""
    lines = ["// Statuses of failed calls, for example errors.Is(err, kvq.ErrLimit).", "const ("]
    for value in one["values"]:
        if value["value"] != 0:
            go = "Err" + names.go[value["name"]][1:]
            lines.append(names.comment("%s: %s" % (go, value["documentation"]), indent="\t", prefix="raw.") +
                         "\t%s = Status(raw.%s)" % (go, names.go[value["name"]]))
    return "\n".join(lines + [")", ""])


def is_info(one):
    return one["name"].endswith(("_info", "_usage", "_layout"))


def field_name(one, field):
    """n_layers is Layers, but n_formats beside formats is NFormats."""
    name = field["name"]
    is_alone = all(other["name"] != name[2:] for other in one["fields"])
    return pascal(name[2:] if name.startswith("n_") and is_alone else name)


def converted(names, field):
    """The field's type in Go, and its conversion from the raw field."""
    kind, raw = field["type"], "it." + pascal(field["name"])
    if kind["kind"] == "pointer":
        return "string", "text(%s)" % raw
    if kind["kind"] == "array" and kind["of"]["kind"] == "character":
        return "string", "text(&%s[0])" % raw
    if is_flag(field):
        return "bool", raw + " != 0"
    if kind["kind"] == "integer" and kind["name"] == "int32_t":
        return "int", "int(%s)" % raw
    return names.type(kind), raw


def go(names):
    lines = ["package kvq\n", "import \"kvq/raw\"\n"]
    for one in names.api["structs"]:
        if not is_info(one) or one["experimental"]:
            continue
        name = names.go[one["name"]]
        fields = [field for field in one["fields"][1:] if not field["name"].startswith("reserved")]
        lines.append(names.declaration(name, one["documentation"], one, prefix="raw.") + "type %s struct {" % name)
        known = {field["name"]: field_name(one, field) for field in fields}
        for field in fields:
            text = flag_text(field)
            comment = text and names.comment(text, indent="\t", prefix="raw.", fields=known)
            lines.append((comment or "") + "\t%s %s%s" % (field_name(one, field), converted(names, field)[0],
                                                          "\n" if field is not fields[-1] else ""))
        lines += ["}\n", "func %sFrom(it *raw.%s) %s {" % (name[0].lower() + name[1:], name, name),
                  "\treturn %s{" % name]
        width = max(len(field_name(one, field)) for field in fields)
        lines += ["\t\t%s %s%s," % (field_name(one, field) + ":", " " * (width - len(field_name(one, field))),
                                    converted(names, field)[1]) for field in fields]
        lines += ["\t}", "}\n"]
    return "\n".join(lines)
