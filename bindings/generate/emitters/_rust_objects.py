"""Generated methods of the crate kvq, and types that have no other methods."""
from emitters import _methods
from emitters._text import NOTICE

HEAD = """//! Generated methods, and types that have no other methods.
use crate::call::{fill, save, Handle};
use crate::convert::int;
use crate::generated::docs::header;
use crate::object::object;
use crate::*;
use kvq_sys as sys;
use std::sync::Arc;
"""
LOAD = """    #[doc = header!(%s)]
    pub fn load(context: &Context, bytes: &[u8]) -> Result<Self> {
        // SAFETY: the slice has this length and lives until the call returns.
        let handle = context.create(|result, error| unsafe {
            sys::%s(context.raw(), bytes.as_ptr().cast(), bytes.len(), result, error)
        })?;
        Ok(Self::of(handle, context))
    }
"""


def method(it, paths):
    name, takes = it.function["name"], "&mut self" if it.alone else "&self"
    inputs = "".join("int(%s), " % one["name"] for one in it.inputs)
    said = "the struct belongs to the function, and its strings live as long as the handle"
    if it.gives == "description":
        returns, body = paths[it.struct], [
            "unsafe {", "    let raw = fill(self.context().panics(), |info, error| sys::%s(self.raw(), %sinfo, error))?;" % (
                name, inputs), "    Ok(%s::from_raw(&raw))" % paths[it.struct], "}"]
    elif it.gives in ("file", "text"):
        returns, said = "Vec<u8>" if it.gives == "file" else "String", "there are `capacity` bytes at `buffer`"
        cache = "self.cache().raw(), " if it.of_cache else ""
        body = ["let bytes = save(self.context().panics(), |buffer, capacity, size, error| unsafe {",
                "    sys::%s(%sself.raw(), %sbuffer.cast(), capacity, size, error)" % (name, cache, inputs), "})?;",
                "Ok(bytes)" if it.gives == "file" else "Ok(String::from_utf8_lossy(&bytes).into_owned())"]
        body = (["let _reading = self.reading()?;"] if it.of_cache else []) + body
    elif it.gives == "number":
        returns, said = "usize", "the number lives until the call returns"
        body = ["self.number(|number, error| unsafe { sys::%s(self.raw(), %snumber, error) })" % (name, inputs)]
    else:
        returns, said = "()", "the sequence is borrowed exclusively"
        body = ["self.change(|cache, sequence, error| unsafe { sys::%s(cache, sequence, %serror) })" % (name, inputs)]
    head = "    pub fn %s(%s) -> Result<%s> {" % (
        it.name, ", ".join([takes] + [one["name"] + ": usize" for one in it.inputs]), returns)
    return ["    #[doc = header!(%s)]" % name, head, "        // SAFETY: %s." % said] + ["        " + line for line in body] + ["    }", ""]


def objects(api, paths):
    lines = ["// " + NOTICE, HEAD]
    for handle, load, methods in _methods.objects(api):
        if handle["name"] == "kvq_context":
            continue  # written by hand: Context::new describes the handle before the object exists
        name = paths[handle["name"]]
        lines += ["object!(%s, %s);" % (name, handle["name"]), ""] if load else []
        lines += ["impl %s {" % name] + ([LOAD % (load["name"], load["name"])] if load else [])
        for it in methods:
            lines += method(it, paths)
        lines[-1:] = ["}", ""]
    return "\n".join(lines)
