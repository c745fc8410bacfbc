"""Rust: the crate kvq-sys except for its build script, and the generated half of the crate kvq."""
from emitters import _rust, _rust_kvq
from emitters._rust import commented, gate, raw_type, signature
from emitters._text import NOTICE

SYS = "bindings/rust/kvq-sys/"


def constants(api, docs):
    lines = []
    for one in api["constants"]:
        lines += ["", *commented(docs.markdown(one["documentation"])),
                  "pub const %s: i32 = %d;" % (one["name"], one["value"])]
    for one in api["enumerations"]:
        kind = one["name"] or "i32"
        if one["name"]:
            lines += ["", *commented(docs.markdown(one["documentation"])), *gate(one), "pub type %s = i32;" % kind]
        for value in one["values"]:
            lines += ["", *commented(docs.markdown(value["documentation"])), *gate(one),
                      "pub const %s: %s = %d;" % (value["name"], kind, value["value"])]
    return lines


def handles(api, docs):
    lines = []
    for one in api["handles"]:
        lines += ["", *commented(docs.markdown(one["documentation"] + "\n\nDestroyed by ::%s." % one["destroy"])),
                  *gate(one), "#[repr(C)]", "pub struct %s {" % one["name"], "    _opaque: Opaque,", "}"]
    return lines


def hooks(api, docs):
    lines = []
    for one in api["hooks"]:
        lines += ["", *commented(docs.markdown(function_text(one))), *gate(one)]
        parameters = ["%s: %s" % (parameter["name"], raw_type(parameter["type"])) for parameter in one["parameters"]]
        head, returns = 'Option<unsafe extern "C" fn', raw_type(one["returns"]["type"])
        inline = signature("", "pub type %s = %s" % (one["name"], head), parameters, returns, ">;")
        below = signature("    ", head, parameters, returns, ">;")
        if len(inline) == 1:
            lines += inline
        elif len(below) == 1:
            lines += ["pub type %s =" % one["name"]] + below
        else:
            broken = signature("    ", 'unsafe extern "C" fn', parameters, returns, ",")
            lines += ["pub type %s = Option<" % one["name"], *broken, ">;"]
    return lines


def structs(api, docs):
    lines = []
    for one in api["structs"]:
        init = "" if one["init"] is None else "\n\nFilled with defaults by ::%s." % one["init"]
        lines += ["", *commented(docs.markdown(one["documentation"] + init)), *gate(one), "#[repr(C)]",
                  "#[derive(Clone, Copy)]", "pub struct %s {" % one["name"]]
        for field in one["fields"]:
            text = docs.described(field)
            lines += [*commented(docs.markdown(text), "    "),
                      "    pub %s: %s," % (field["name"], raw_type(field["type"]))]
        lines.append("}")
    return lines


def function_text(one, docs=None):
    """The comment of a function or hook, including its parameters."""
    text = one["documentation"]
    said = [(parameter["name"], docs.described(parameter) if docs else parameter["documentation"])
            for parameter in one["parameters"]]
    said = ["- `%s`: %s" % (name, " ".join(text.split())) for name, text in said if text]
    text += "\n\n" + "\n".join(said) if said else ""
    returns = (docs.described(one["returns"]) if docs else one["returns"]["documentation"]).strip()
    text += "\n\nReturns %s" % returns if returns else ""
    if "threads" in one:
        text += "\n\nThreads: %s" % one["threads"] + "\n\nSince %s." % one["since"]
    return text


def functions(api, docs):
    lines = ["", 'extern "C" {']
    for one in api["functions"]:
        lines += [*commented(docs.markdown(function_text(one, docs)), "    "), *gate(one, "    ")]
        parameters = ["%s: %s" % (parameter["name"], raw_type(parameter["type"])) for parameter in one["parameters"]]
        lines += signature("    ", "pub fn " + one["name"], parameters, raw_type(one["returns"]["type"]), ";") + [""]
    return lines[:-1] + ["}"]


def assertions(api):
    """Sizes and alignments, checked by the compiler."""
    lines = ["", "/// Struct sizes and alignments of the compiled library.",
             '#[cfg(target_pointer_width = "%d")]' % api["pointer_width"], "const _: () = {"]
    for one in api["structs"]:
        lines += gate(one, "    ") + ["    assert!(size_of::<%s>() == %d);" % (one["name"], one["size"])]
        lines += gate(one, "    ") + ["    assert!(align_of::<%s>() == %d);" % (one["name"], one["alignment"])]
    return lines + ["};"]


def library(api):
    docs = _rust.Documentation(api)
    return "\n".join([
        "// " + NOTICE,
        "//! The C API of kvq %s under its C names: every function, struct, constant and hook." % api["version"],
        "//!", "//! Programs should use the safe crate `kvq`. The rest of this page is the comment of `kvq.h`.", "//!",
        *commented(docs.markdown(api["documentation"]), mark="//!"),
        "#![allow(non_camel_case_types)]", "", "use std::marker::{PhantomData, PhantomPinned};",
        "use std::mem::{align_of, size_of};", "use std::os::raw::{c_char, c_void};", "",
        "/// Contents of a handle, known to the library alone.", "#[repr(C)]", "struct Opaque {", "    _bytes: [u8; 0],",
        "    _neither_send_nor_sync: PhantomData<(*mut u8, PhantomPinned)>,", "}",
        *constants(api, docs), *handles(api, docs), *hooks(api, docs), *structs(api, docs), *functions(api, docs),
        *assertions(api), ""])


def layout_test(api):
    lines = ["// " + NOTICE, "//! Field offsets of every struct, as in the compiled library.",
             '#![cfg(target_pointer_width = "%d")]' % api["pointer_width"], "", "use kvq_sys::*;",
             "use std::mem::MaybeUninit;", "use std::ptr::addr_of;", "", "macro_rules! offset {",
             "    ($type:ty, $field:ident) => {{", "        let it = MaybeUninit::<$type>::uninit();",
             "        // SAFETY: addr_of reads nothing.",
             "        unsafe { addr_of!((*it.as_ptr()).$field) as usize - it.as_ptr() as usize }", "    }};", "}"]
    for one in api["structs"]:
        lines += ["", *gate(one), "#[test]", "fn offsets_of_%s() {" % one["name"]]
        lines += ["    assert_eq!(offset!(%s, %s), %d);" % (one["name"], field["name"], field["offset"])
                  for field in one["fields"]]
        lines.append("}")
    return "\n".join(lines + [""])


def emit(api):
    return {SYS + "src/lib.rs": library(api), SYS + "tests/layout.rs": layout_test(api), **_rust_kvq.emit(api)}
