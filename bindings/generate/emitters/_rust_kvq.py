"""The generated half of the crate kvq: enumerations, structs that the library fills, setters of options, comments and simple
methods."""
import re

from emitters import _rust, _rust_objects
from emitters._rust import commented
from emitters._text import NOTICE, choice_text, counts_of, depth_of, flag_text, is_choice, is_flag, target_of

OUT = "bindings/rust/kvq/src/generated/"
FILLED = ("_info", "_usage", "_layout")
# Fields that Rust's types imply, or that are not set as numbers.
TAKEN_OTHERWISE = ("struct_size", "dtype", "q_dtype", "output_dtype")
# Parameters that methods do not have.
LEFT_OUT = ("error", "result", "user", "progress", "dtype", "buffer", "capacity", "size", "length", "n", "n_sequences",
            "batch", "info")


def is_count(kind):
    return kind.get("name") in ("int32_t", "int64_t") and kind["kind"] == "integer"


def takes_minus_one(field):
    return is_count(field["type"]) and "-1: none" in field["documentation"]


def is_text(kind):
    return kind["kind"] == "array" and kind["of"]["kind"] == "character" or \
        kind["kind"] == "pointer" and kind["to"]["kind"] == "character"


def idiom_type(field, paths):
    kind = field["type"]
    if is_flag(field):
        return "bool"
    if is_text(kind):
        return "String"
    if kind["kind"] == "enumeration":
        return paths[kind["name"]]
    return "usize" if is_count(kind) else _rust.raw_type(kind)


def enumeration(one, docs, paths):
    name, found = paths[one["name"]], _rust.variants(one)
    lines = ["", *commented(docs.markdown(one["documentation"])),
             "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]", "#[non_exhaustive]", "pub enum %s {" % name]
    for value in one["values"]:
        lines += [*commented(docs.markdown(value["documentation"]), "    "), "    %s," % found[value["name"]]]
    lines += ["    /// A value of a newer library that this crate has no name for.", "    Other(i32),", "}", "",
              "impl %s {" % name, "    /// Return the value in C.", "    pub fn code(self) -> i32 {",
              "        match self {"]
    lines += ["            %s::%s => sys::%s," % (name, found[value["name"]], value["name"]) for value in one["values"]]
    lines += ["            %s::Other(code) => code," % name, "        }", "    }", "",
              "    /// Convert a value from C.", "    pub fn from_code(code: i32) -> Self {", "        match code {"]
    lines += ["            sys::%s => %s::%s," % (value["name"], name, found[value["name"]]) for value in one["values"]]
    return lines + ["            code => %s::Other(code)," % name, "        }", "    }", "}"]


def conversion(field, paths):
    value, kind = "raw." + field["name"], field["type"]
    if is_flag(field):
        return value + " != 0"
    if kind["kind"] == "array" and is_text(kind):
        return "text_of(&%s)" % value
    if is_text(kind):
        return "unsafe { text_at(%s) }" % value
    if kind["kind"] == "enumeration":
        return "%s::from_code(%s)" % (paths[kind["name"]], value)
    return "count(%s)" % value if is_count(kind) else value


def filled(one, docs, paths):
    """A struct that the library fills, as a struct that owns its contents."""
    name = paths[one["name"]]
    fields = [field for field in one["fields"] if field["name"] != "struct_size" and field["documentation"] != "0."]
    lines = ["", *commented(docs.markdown(one["documentation"])), "#[derive(Clone, Debug, PartialEq)]",
             "#[non_exhaustive]", "pub struct %s {" % name]
    for field in fields:
        lines += [*commented(docs.markdown(flag_text(field)), "    "),
                  "    pub %s: %s," % (field["name"], idiom_type(field, paths))]
    has_pointer = any(field["type"]["kind"] == "pointer" for field in fields)
    safety = ["    // SAFETY: the caller guarantees that the strings are valid."] if has_pointer else []
    lines += ["}", "", "impl %s {" % name]
    if has_pointer:
        lines += ["    /// # Safety", "    /// The library must have filled `raw`, and its strings must still be alive."]
    head = "pub(crate) %sfn from_raw(raw: &sys::%s) -> Self {" % ("unsafe " if has_pointer else "", one["name"])
    lines += ["    " + head, *["    " + line for line in safety]]
    values = ["%s: %s" % (field["name"], conversion(field, paths)) for field in fields]
    inline = "        Self { %s }" % ", ".join(values)
    if len(inline) <= _rust.WIDTH:
        return lines + [inline, "    }", "}"]
    return lines + ["        Self {", *["            %s," % value for value in values], "        }", "    }", "}"]


def types(api, docs, paths):
    lines = ["// " + NOTICE, "//! Enumerations, and descriptions of the library's objects.",
             "use crate::convert::{count, text_at, text_of};", "use kvq_sys as sys;"]
    for one in api["enumerations"]:
        if one["name"]:
            lines += enumeration(one, docs, paths)
            continue
        for value in one["values"]:
            if value["name"] in paths:
                lines += ["", *commented(docs.markdown(value["documentation"])),
                          "pub const %s: usize = sys::%s as usize;" % (paths[value["name"]], value["name"])]
    for one in api["structs"]:
        if one["name"].endswith(FILLED):
            lines += filled(one, docs, paths)
    return "\n".join(lines + [""])


def setter(field, docs, paths):
    kind, name = field["type"], field["name"]
    value = name
    if kind["kind"] == "enumeration":
        value = name + ".code()"
    elif is_choice(field):
        value = "i32::from(%s)" % name
    elif is_count(kind) and not takes_minus_one(field):
        value = "$crate::convert::int(%s)" % name if kind["name"] == "int32_t" else "$crate::convert::long(%s)" % name
    given = {"int64_t": "usize", "int32_t": "usize"}.get(kind.get("name")) or \
        ("$crate::" + paths[kind["name"]] if kind["kind"] == "enumeration" else _rust.raw_type(kind))
    given = "bool" if is_choice(field) else "i32" if takes_minus_one(field) else given
    text = re.sub(r"^-1 \(default\): ", "Unless set: ", choice_text(field))
    return [*commented(docs.markdown(text), "        "), "        #[must_use]",
            "        pub fn %s(mut self, %s: %s) -> Self {" % (name, name, given),
            "            self.raw.%s = %s;" % (name, value), "            self", "        }"]


def options(api, docs, paths):
    """A macro whose arms are the setters of the numeric fields of an options struct."""
    lines = ["// " + NOTICE,
             "//! Setters of options: `setters!(kvq_cache_options)` inside an `impl` of a type that has the struct as `raw`.", "",
             "macro_rules! setters {"]
    for one in api["structs"]:
        if not one["init"] or one["name"] == "kvq_error":
            continue
        numbers = [field for field in one["fields"] if field["type"]["kind"] in ("integer", "float", "enumeration") and
                   field["documentation"] != "0." and field["name"] not in counts_of(one).union(TAKEN_OTHERWISE)]
        if not numbers:
            continue
        lines.append("    (%s) => {" % one["name"])
        for field in numbers:
            lines += setter(field, docs, paths) + [""]
        lines[-1:] = ["    };"]
    return "\n".join(lines + ["}", "pub(crate) use setters;", ""])


def receives_handles(parameter):
    """Whether a function puts several handles there, which a method returns."""
    kind = parameter["type"]
    return target_of(kind)["kind"] == "handle" and depth_of(kind) == 2 and not kind["to"].get("const")


def function_text(one):
    text = one["documentation"]
    said = ["- `%s`: %s" % (parameter["name"], " ".join(parameter["documentation"].split()))
            for parameter in one["parameters"]
            if parameter["documentation"] and parameter["name"] not in LEFT_OUT and not receives_handles(parameter)]
    text += "\n\n" + "\n".join(said) if said else ""
    returns = one["returns"]["documentation"].strip()
    if one["returns"]["c"] != "kvq_status":
        return text + ("\n\nReturns %s" % returns if returns and not returns.startswith("NULL") else "")
    returns = re.sub(r"^KVQ_OK; ", "", returns)
    return text + "\n\n# Errors\n\n" + returns[0].upper() + returns[1:] if returns != "KVQ_OK" else text


def documentation(api, docs):
    """A macro that expands to the comment of a declaration in the header, for `#[doc = ...]`."""
    lines = ["// " + NOTICE, "//! Comments of the header: `#[doc = header!(kvq_append)]`.", "", "macro_rules! header {"]
    for group in ("handles", "hooks", "structs", "functions"):
        for one in api[group]:
            if group == "structs" and one["name"].endswith(FILLED) or one["name"].endswith(("_init", "_destroy")):
                continue
            text = function_text(one) if group in ("functions", "hooks") else one["documentation"]
            lines += arm("(%s)" % one["name"], docs.markdown(text))
            if group == "structs":
                for field in one["fields"]:
                    if field["type"]["kind"] in ("pointer", "hook") and field["name"] != "sequences":
                        lines += arm("(%s, %s)" % (one["name"], field["name"]), docs.markdown(field["documentation"]))
    return "\n".join(lines + ["}", "pub(crate) use header;", ""])


def arm(pattern, lines):
    return ["    %s => {" % pattern, '        r#"' + "\n".join(lines) + '"#', "    };"]


def emit(api):
    groups = ("constants", "enumerations", "handles", "hooks", "structs", "functions")
    stable = {group: [one for one in api[group] if not one.get("experimental")] for group in groups}
    paths = _rust.idiomatic(stable)
    docs = _rust.Documentation(stable, paths)
    return {OUT + "types.rs": types(stable, docs, paths), OUT + "options.rs": options(stable, docs, paths),
            OUT + "docs.rs": documentation(stable, docs), OUT + "objects.rs": _rust_objects.objects(stable, paths)}
