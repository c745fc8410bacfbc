"""Checks that kvq.h has every mark that bindings are generated from."""
import re

from emitters._text import depth_of, target_of

ALLOWED = {"memory": {"host", "context", "device"}, "keeps": {"call", "handle", "released", "static"}}
# Keywords of Python, Rust, Go and C#.
KEYWORDS = set("""
    and as assert async await break class continue def del elif else except finally for from global if import in is lambda
    nonlocal not or pass raise return try while with yield
    abstract become box const crate do dyn enum extern fn impl let loop macro match mod move mut override priv pub ref self
    static struct super trait type typeof union unsafe unsized use virtual where
    case chan default defer fallthrough func go goto interface map package range select switch var
    base bool byte catch char checked decimal delegate double event explicit false fixed float foreach implicit int
    internal is lock long namespace new null object operator out params private protected public readonly sbyte sealed
    short sizeof stackalloc string this throw true uint ulong unchecked ushort using void volatile""".split())


class Checker:
    def __init__(self, model, path):
        self.model, self.path, self.problems = model, path, []
        self.functions = {one["name"] for one in model["functions"]}
        self.handles = {one["name"] for one in model["handles"]}
        self.fields = {field["name"] for one in model["structs"] for field in one["fields"]}

    def fail(self, one, what):
        self.problems.append("%s:%d: %s: %s" % (self.path, one["line"], one["name"] or "an enumeration", what))

    def check(self):
        for rule, group in ((self.check_enumeration, "enumerations"), (self.check_handle, "handles"),
                            (self.check_hook, "hooks"), (self.check_struct, "structs"),
                            (self.check_function, "functions")):
            for one in self.model[group]:
                rule(one)
                for member in [one] + one.get("fields", []) + one.get("parameters", []):
                    if member["name"] in KEYWORDS:
                        self.fail(one, "%s is a keyword of Python, Rust, Go or C#" % member["name"])
        return self.problems

    def check_marks(self, one, it, needed, names):
        name = it.get("name", "what it returns")
        for mark in needed:
            if mark not in it:
                self.fail(one, "%s lacks \\%s" % (name, mark))
        for mark, allowed in ALLOWED.items():
            if mark in it and it[mark] not in allowed:
                self.fail(one, "%s has \\%s %s" % (name, mark, it[mark]))
        if it.get("length", "string") == "string":
            return
        for word in re.findall(r"[a-z]\w*(?:\.\w+)?", it["length"]):
            if word in ("sum", "strided", "words"):
                continue
            first, _, field = word.partition(".")
            known = names if not field else names | {handle.partition("_")[2] for handle in self.handles}
            if first not in known and first.rstrip("s") not in known or field and field not in self.fields:
                self.fail(one, "%s has \\length with %s, which is nothing here" % (name, word))

    def check_pointer(self, one, it, names, is_field):
        """A parameter or field that is a pointer or a hook."""
        if re.search(r"\bNULL(:| is| exactly| for| \()", it["documentation"]) and "nullable" not in it:
            self.fail(one, "%s speaks of NULL but lacks \\nullable" % it["name"])
        target, depth = target_of(it["type"]), depth_of(it["type"])
        is_user = target["kind"] == "void" and (it["name"].endswith("user") or it["name"] == "stream")
        if target["kind"] == "hook" or is_user:
            self.check_marks(one, it, ["nullable", "keeps"], names)
        elif target["kind"] == "handle" and depth == 1:
            self.check_marks(one, it, ["keeps"] if is_field else [], names)
        elif it["c"] == target.get("name", "") + "**" and target["kind"] == "handle" and "length" not in it:
            if it["name"] != "result":
                self.fail(one, "a handle comes out as %s, not as result" % it["name"])
            if one["name"] != "kvq_context_create" and it.get("parent", "").partition(".")[0] not in names:
                self.fail(one, "result lacks \\parent, or names no parameter")
        elif not (target["kind"] == "struct" and depth == 1):
            self.check_marks(one, it, ["length", "memory", "keeps"], names)

    def check_enumeration(self, one):
        if not one["closed"]:
            self.fail(one, "lacks \\values")
        if not one["values"]:
            self.fail(one, "no enumerators follow")
        for value in one["values"]:
            if not value["documentation"]:
                self.fail(one, "%s has no comment" % value["name"])

    def check_handle(self, one):
        if one.get("destroy") not in self.functions:
            self.fail(one, "lacks \\destroy, or it is no function")

    def check_hook(self, one):
        if not one["documentation"]:
            self.fail(one, "has no comment")

    def check_struct(self, one):
        if (one["fields"][0]["name"], one["fields"][0]["c"]) != ("struct_size", "uint32_t"):
            self.fail(one, "does not begin with struct_size")
        if not one["documentation"]:
            self.fail(one, "has no comment")
        names = {field["name"] for field in one["fields"]}
        for function in self.model["functions"]:  # lengths may name parameters of the call that takes the struct
            if any(parameter["c"] == "const %s*" % one["name"] for parameter in function["parameters"]):
                names |= {parameter["name"] for parameter in function["parameters"]}
        is_filled = one["name"].endswith(("_info", "_error", "_usage"))
        for field in one["fields"]:
            if field["name"].startswith("reserved") and field["documentation"] != "0.":
                self.fail(one, "%s does not say that it is 0" % field["name"])
            if is_filled and field["type"]["kind"] == "pointer":
                self.check_marks(one, field, ["length", "keeps"], names)
            elif field["type"]["kind"] in ("pointer", "hook"):
                self.check_pointer(one, field, names, True)

    def check_function(self, one):
        names = {parameter["name"] for parameter in one["parameters"]}
        for section in ("documentation", "threads", "since"):
            if not one[section]:
                self.fail(one, "lacks \\%s" % section if section != "documentation" else "has no comment")
        returns = one["returns"]
        if returns["c"] == "kvq_status":
            if not returns["documentation"]:
                self.fail(one, "lacks \\returns")
            if not one["parameters"] or (one["parameters"][-1]["name"], one["parameters"][-1]["c"]) != ("error", "kvq_error*"):
                self.fail(one, "does not take an error last")
        elif returns["type"]["kind"] == "pointer":
            is_handle = target_of(returns["type"])["kind"] == "handle"
            self.check_marks(one, returns, ["keeps"] if is_handle else ["length", "keeps"], names)
        for parameter in one["parameters"]:
            if parameter["name"] == "error" and returns["c"] == "kvq_status":
                continue
            if parameter["type"]["kind"] not in ("pointer", "hook"):
                continue
            if one["name"].endswith(("_destroy", "_init")):
                self.check_marks(one, parameter, ["nullable"], names)
            else:
                self.check_pointer(one, parameter, names, False)
