"""Names, types and documentation of the header in Rust."""
import re
import textwrap

from emitters._text import paragraphs

INTEGERS = {"int8_t": "i8", "int16_t": "i16", "int32_t": "i32", "int64_t": "i64",
            "uint8_t": "u8", "uint16_t": "u16", "uint32_t": "u32", "uint64_t": "u64", "size_t": "usize"}
FLOATS = {"float": "f32", "double": "f64"}
WIDTH = 120
EXPERIMENTAL = '#[cfg(feature = "experimental")]'
KEPT = {"call": "until the call returns", "handle": "as long as the handle lives",
        "released": "until `released` has been called", "static": "for the life of the process"}

# Names in the crate kvq that do not follow from the name in C.
IDIOM = {
    "kvq_context_create": "Context::new", "kvq_cache_create": "Cache::new", "kvq_sequence_create": "Sequence::new",
    "kvq_device_describe": "device_describe", "kvq_cpu_isa_name": "cpu_isas", "kvq_cpu_isa_count": "cpu_isas",
    "kvq_api_version": "api_version", "kvq_version_string": "version", "kvq_status_name": "Status::name",
    "kvq_append": "Sequence::append", "kvq_append_sequences": "Cache::append", "kvq_attend": "Cache::attend",
    "kvq_extend": "Cache::extend",
    "kvq_step_begin": "Cache::step", "kvq_step_commit": "Step::commit", "kvq_step_abort": "Step::abort",
    "kvq_compress": "Sequence::compress", "kvq_sequence_load": "Cache::load_sequence",
    "kvq_snapshot_describe": "Cache::describe_snapshot", "kvq_sequence_cache": "Sequence::cache",
    "kvq_pool_layout": "Cache::block_layout", "kvq_pool_create": "Pool::new", "kvq_pool_plan_create": "Pool::plan",
    "kvq_pool_append": "PoolPlan::append", "kvq_pool_attend": "PoolPlan::attend", "kvq_pool_extend": "PoolPlan::extend",
    "kvq_pool_call": "Extend",
    "qp_quantize": "Matrix::quantize", "qp_linear": "Matrix::linear", "qp_linear_shared": "Matrix::linear_shared",
    "qp_scheme_name": "schemes", "qp_scheme_count": "schemes", "qp_scheme_bits": "scheme_bits",
    "kvq_attend_batch": "Attend", "kvq_append_batch": "Append", "kvq_extend_batch": "Extend",
    "kvq_step_batch": "Step",
    "kvq_error": "Error",
    "kvq_allocate_hook": "HostAllocator", "kvq_free_hook": "HostAllocator",
    "kvq_device_allocate_hook": "DeviceAllocator", "kvq_device_free_hook": "DeviceAllocator",
    "kvq_log_hook": "ContextOptions::log",
    "kvq_parallel_for_hook": "ContextOptions::parallel_for", "kvq_released_hook": "ContextOptions::released",
    "KVQ_PAGE_SLOTS": "PAGE_SLOTS", "KVQ_MAX_KEY_STAGES": "MAX_KEY_STAGES", "KVQ_MAX_EXPERTS": "MAX_EXPERTS",
}


def gate(one, indent=""):
    """The attribute of experimental declarations."""
    return [indent + EXPERIMENTAL] if one["experimental"] else []


def camel(name):
    return "".join(word.capitalize() for word in name.lower().split("_"))


def variants(enumeration):
    """The names of an enumeration's values as variants: KVQ_ROPE_HALF is Half."""
    names = [value["name"] for value in enumeration["values"]]
    prefix = names[0].rpartition("_")[0] + "_"
    while not all(name.startswith(prefix) for name in names):
        prefix = prefix[:-1].rpartition("_")[0] + "_"
    return {name: camel(re.sub(r"^E_", "", name[len(prefix):])) for name in names}


def idiomatic(api):
    """{name in C: path in the crate kvq}."""
    found = {handle["name"]: camel(handle["name"].partition("_")[2]) for handle in api["handles"]}
    found.update({struct["name"]: camel(struct["name"].partition("_")[2]) for struct in api["structs"]})
    for enumeration in api["enumerations"]:
        if enumeration["name"]:
            found[enumeration["name"]] = camel(enumeration["name"].partition("_")[2])
            found.update({name: "%s::%s" % (found[enumeration["name"]], variant)
                          for name, variant in variants(enumeration).items()})
    for function in api["functions"]:
        owners = [one["name"] for one in api["handles"] if function["name"].startswith(one["name"] + "_")]
        if owners and not function["name"].endswith(("_init", "_destroy")):
            owner = max(owners, key=len)
            found[function["name"]] = "%s::%s" % (found[owner], function["name"][len(owner) + 1:])
    return {**found, **IDIOM}


class Documentation:
    """Text of the header as lines of Markdown, with references as links."""

    def __init__(self, api, paths=None):
        """`paths` from idiomatic(), or None for the names in C."""
        self.names = {one["name"] for group in ("enumerations", "handles", "hooks", "structs", "functions", "constants")
                      for one in api[group] if one["name"]}
        self.names |= {value["name"] for one in api["enumerations"] for value in one["values"]}
        self.experimental = {one["name"] for group in ("handles", "hooks", "structs", "functions")
                             for one in api[group] if one["experimental"]}
        self.fields = {one["name"]: {field["name"] for field in one["fields"]} for one in api["structs"]}
        self.paths = paths

    def link(self, name, field=""):
        if self.paths is None:
            return "[`%s`]" % name if not field else "[`%s::%s`]" % (name, field)
        if name not in self.paths:
            return "[`%s`](crate::sys::%s)" % (name, name)
        path = self.paths[name] + ("::" + field if field else "")
        return "[`%s`](crate::%s)" % (path, path)

    def reference(self, match):
        name, field = match[1], match[2] or ""
        if name not in self.names or field and field not in self.fields.get(name, ()):
            return match[0]
        if name in self.experimental and not match[0].startswith("::"):
            return "`%s`" % name  # named where its feature may be off
        return self.link(name, field)

    def prose(self, text):
        """A paragraph: code in backticks stays, names of the header become links, the rest is escaped."""
        parts = re.split(r"(`[^`]*`)", text)
        for at in range(0, len(parts), 2):
            escaped = re.sub(r"([\[\]<>*\\|])", r"\\\1", parts[at])
            parts[at] = re.sub(r"(?:::)?\b((?:kvq|qp|KVQ|QP)_\w+)(?:::(\w+))?", self.reference, escaped)
        return "".join(parts)

    def markdown(self, text):
        lines = []
        for kind, part in paragraphs(text):
            lines += [""] if lines else []
            if kind == "code":
                lines += ["```text"] + part.split("\n") + ["```"]
            elif kind == "list":
                for item in part:
                    lines += wrapped(self.prose(item), "- ", "  ")
            else:
                lines += wrapped(self.prose(part))
        return lines

    def marks(self, it):
        """The marks of a parameter or field as a sentence."""
        said = ["may be NULL"] if it.get("nullable") else []
        if it.get("length") == "string":
            said.append("ends with a NUL")
        elif "length" in it:
            said.append("length `%s`" % it["length"])
        if it.get("memory", "host") != "host":
            said.append("in the memory of the %s" % it["memory"])
        if it.get("keeps", "call") != "call":
            said.append("used " + KEPT[it["keeps"]])
        if "parent" in it:
            said.append("keeps `%s` alive" % it["parent"])
        return "(%s)" % "; ".join(said) if said else ""

    def described(self, it):
        return " ".join(part for part in (it["documentation"], self.marks(it)) if part)


def wrapped(text, first="", rest=""):
    lines = textwrap.wrap(text, 108, initial_indent=first, subsequent_indent=rest, break_long_words=False,
                          break_on_hyphens=False)
    return [lines[0]] + [re.sub(r"^(\s*)([-+#>=]|\d+[.)]) ", r"\1\\\2 ", line) if not first else line
                         for line in lines[1:]] if lines else []


def commented(lines, indent="", mark="///"):
    return ["%s%s %s" % (indent, mark, line) if line else indent + mark for line in lines]


def raw_type(kind):
    """A type of the header in the crate kvq-sys."""
    if kind["kind"] == "pointer":
        return "*%s %s" % ("const" if kind["to"].get("const") else "mut", raw_type(kind["to"]))
    if kind["kind"] == "array":
        return "[%s; %d]" % (raw_type(kind["of"]), kind["count"])
    if kind["kind"] == "integer":
        return INTEGERS[kind["name"]]
    return {"void": "c_void", "character": "c_char"}.get(kind["kind"]) or FLOATS.get(kind["name"], kind["name"])


def signature(indent, head, parameters, returns, end):
    """A function's declaration as rustfmt writes it."""
    tail = ")" + ("" if returns == "c_void" else " -> " + returns) + end
    line = indent + head + "(" + ", ".join(parameters) + tail
    if len(line) < WIDTH or len(line) == WIDTH and end != ";":
        return [line]
    if len(line) == WIDTH:  # the semicolon of a declaration is one too many
        return [line.rpartition(" -> ")[0], indent + "    -> " + returns + end]
    return [indent + head + "("] + ["%s    %s," % (indent, one) for one in parameters] + [indent + tail]
