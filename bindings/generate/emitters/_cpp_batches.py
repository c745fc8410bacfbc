"""Batches of kvq.h as structs of spans whose lengths are checked: AttendBatch, AppendBatch, PoolCall."""
import re

from emitters._cpp_calls import class_of
from emitters._cpp_text import comment, function
from emitters._text import target_of


def is_batch(struct):
    """Whether it has tensors, as many rows as sequences have tokens."""
    return any(field.get("memory") == "context" and field["length"].startswith(("strided(", "sum("))
               for field in struct["fields"])


def arrays_of(struct):
    return [field for field in struct["fields"] if field["type"]["kind"] == "pointer"]


def left_out(struct, field):
    """Whether spans or the element type make the field redundant."""
    return (field["name"] == "struct_size" or field["name"].startswith("reserved") or field["c"] == "kvq_dtype" or
            field["name"] in [one["length"] for one in arrays_of(struct)] or is_rows(struct, field))


def is_rows(struct, field):
    """Whether it is the number of rows, which whoever has planned them knows."""
    return any(one["length"].startswith("strided(%s," % field["name"]) for one in arrays_of(struct))


def span_of(field):
    return "std::span<%s>" % field["c"][:-1].strip().replace("void", "float")


def declaration(struct):
    lines = comment("%s Tensors are of float; ::%s takes other element types, too." % (struct["documentation"], struct["name"]))
    lines.append("struct %s {" % class_of(struct["name"]))
    for field in struct["fields"]:
        if left_out(struct, field):
            continue
        lines += comment(field["documentation"].replace("NULL (default)", "empty (default)"), "  ")
        is_array = field["type"]["kind"] == "pointer"
        lines.append("  %s %s = %s;" % (span_of(field) if is_array else field["c"], field["name"], "{}" if is_array else "0"))
    return lines + ["};"]


def number_of(word):
    """A part of a length: sum(token_counts), layer.kv_heads, words(mask_slots)."""
    if word.startswith("words("):
        return "detail::words(batch.%s)" % word[len("words("):-1]
    return "total" if word.startswith("sum(") else word


def check(struct, field, first):
    name, length = field["name"], field["length"]
    subject = '"%s", batch.%s.size()' % (name, name)
    rows = re.fullmatch(r"strided\((.*)\)", length)
    if rows:
        meaning = " * ".join(rows[1].split(", "))
        return "detail::require_rows%s(%s, {%s}, batch.%s_token_stride, batch.%s_head_stride, \"%s\");" % (
            "_or_none" if "nullable" in field else "", subject, ", ".join(number_of(word) for word in rows[1].split(", ")), name, name, meaning)
    if length == first.get("length"):
        return 'detail::require_size_or_none(%s, n, "as many as %s");' % (subject, first["name"])
    factors = [number_of(word) for word in length.split(" * ")]
    product = factors[0] if len(factors) == 1 else "detail::product({%s})" % ", ".join(factors)
    return 'detail::require_size_or_none(%s, %s, "%s");' % (subject, product, length)


def value_of(field):
    if field["type"]["kind"] != "pointer":
        return "batch.%s" % field["name"]
    return ("detail::optional(batch.%s)" if "nullable" in field else "batch.%s.data()") % field["name"]


def checked(struct):
    """The function that converts it to the C struct."""
    arrays = arrays_of(struct)
    first = arrays[0]
    rows = [field["name"] for field in struct["fields"] if is_rows(struct, field)]
    if rows:
        body = [check(struct, field, struct) for field in arrays]
        return converted(struct, body, rows[0], rows[0], ["int32_t " + rows[0]])
    counts = next(re.search(r"sum\((\w+)\)", field["length"])[1] for field in arrays if "sum(" in field["length"])
    body = ['const int32_t n = detail::count("%s", batch.%s.size());' % (first["name"], first["name"]),
            'if (n == 0) throw Error(KVQ_E_ARGUMENT, "%s is empty");' % first["name"],
            "const int64_t total = detail::sum(batch.%s, n);" % counts]
    return converted(struct, body + [check(struct, field, first) for field in arrays[1:]], first["length"], "n")


def converted(struct, body, count, value, parameters=()):
    """The function, after the checks in `body`; `count` is the C struct's number of rows or sequences."""
    body = body + ["%s it = initialised<%s>();" % (struct["name"], struct["name"]), "it.%s = %s;" % (count, value)]
    for field in struct["fields"]:
        if not left_out(struct, field):
            body.append("it.%s = %s;" % (field["name"], value_of(field)))
    body.append("return it;")
    return function("inline %s c_struct" % struct["name"],
                    ["const %s& batch" % class_of(struct["name"]), "const kvq_layer_info& layer", *parameters], "", body, "")


def method(struct, call):
    """The overload that takes it; `call` takes the C struct."""
    parameters = [one.replace("const %s&" % struct["name"], "const %s&" % class_of(struct["name"])) for one in call.parameters]
    return function("void " + call.name, parameters, " const", [
        "const %s c_batch = detail::c_struct(batch, describe_layer(layer));" % struct["name"],
        "checked(%s, %s);" % (call.function["name"], ", ".join(one.replace("&batch", "&c_batch") for one in call.arguments))])
