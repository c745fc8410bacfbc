#!/usr/bin/env python3
"""Reads include/kvq.h, which is written so that this is enough to generate bindings from, and checks that nothing that
they need is missing.

usage: header.py HEADER              check; one line, or what is missing
       header.py HEADER --constants  the name and value of every constant that is not experimental, for comparison with a
                                     baseline; versions are left out
       header.py HEADER --fields     the place and type of every field of a struct that is not experimental, likewise
       header.py HEADER --symbols    the name of every function, those that are experimental marked so
       header.py HEADER --source     a library in C that does nothing: every function that is not experimental
       header.py HEADER --cut FILE   the header with no more fields at the end of structs than FILE has, a list of fields
"""
import collections
import re
import sys

MARKS = ("nullable", "length", "memory", "keeps", "parent", "destroy", "values")
ALLOWED = {"memory": {"host", "context", "device"}, "keeps": {"call", "handle", "released", "static"}}
# Of Python, Rust, Go and C#.
KEYWORDS = set("""
    and as assert async await break class continue def del elif else except finally for from global if import in is lambda
    nonlocal not or pass raise return try while with yield
    abstract become box const crate do dyn enum extern fn impl let loop macro match mod move mut override priv pub ref self
    static struct super trait type typeof union unsafe unsized use virtual where
    case chan default defer fallthrough func go goto interface map package range select switch var
    base bool byte catch char checked decimal delegate double event explicit false fixed float foreach implicit int
    internal is lock long namespace new null object operator out params private protected public readonly sbyte sealed
    short sizeof stackalloc string this throw true uint ulong unchecked ushort using void volatile""".split())


class Declaration:
    def __init__(self, kind, name, doc, line, experimental):
        self.kind, self.name, self.doc, self.line, self.experimental = kind, name, doc, line, experimental
        self.members = []  # of a struct or an enumeration: (name, type or value, doc); parameters of a function
        self.returns = None


def marks_of(text):
    """A comment's prose, and its marks: name to argument."""
    parts = re.split(r"\\(%s)\b" % "|".join(MARKS), text)
    return parts[0], {name: " ".join(value.split()) for name, value in zip(parts[1::2], parts[2::2])}


def clean(comment):
    comment = re.sub(r"^/\*\*<?|\*/$", "", comment.strip())
    return re.sub(r"\n\s*\*? ?", "\n", comment).strip()


def split_type(text):
    """`const void* const* y` and `char name[128]`: type, name, size of an array."""
    match = re.fullmatch(r"(.*?[\s*])(\w+)\s*(?:\[(\w+)\])?", " ".join(text.split()))
    kind = re.sub(r"\s*\*\s*", "*", match[1]).strip()
    return kind, match[2], match[3]


def fields_in(body):
    return re.finditer(r"([^;/]+);\s*(/\*\*<.*?\*/)?", re.sub(r"/\*[^*].*?\*/", "", body), re.S)


def parse(text):
    """The declarations of the header in their order."""
    found = []
    experimental_at = text.find("#ifdef KVQ_EXPERIMENTAL")
    pattern = re.compile(
        r"(?P<doc>/\*\*(?!<)(?:(?!\*/).)*\*/\s*)?"
        r"(?:typedef struct (?P<struct>\w+) \{(?P<fields>.*?)\} \w+;"
        r"|typedef struct (?P<handle>\w+) \w+;"
        r"|typedef int32_t (?P<integer>\w+);\s*enum \{(?P<values>.*?)\};"
        r"|typedef int32_t (?P<bare>\w+);"
        r"|enum \{(?P<sizes>.*?)\};"
        r"|typedef (?P<hook_returns>[\w*]+) \(\*(?P<hook>\w+)\)\((?P<hook_parameters>.*?)\);"
        r"|^KVQ_API (?P<returns>[\w ]+?\**) ?(?P<function>\w+)\((?P<parameters>.*?)\);"
        r"|^#define (?P<macro>KVQ_\w+) (?P<number>\d+)$)", re.S | re.M)
    for match in pattern.finditer(text):
        doc = clean(match["doc"] or "")
        line = text.count("\n", 0, match.end()) + 1
        after = 0 <= experimental_at < match.start()

        def add(kind, name):
            found.append(Declaration(kind, name, doc, line, after))
            return found[-1]

        if match["struct"]:
            one = add("struct", match["struct"])
            for field in fields_in(match["fields"]):
                kind, name, size = split_type(field[1])
                one.members.append((name, kind + ("[%s]" % size if size else ""), clean(field[2] or "")))
        elif match["handle"]:
            add("handle", match["handle"])
        elif match["integer"] or match["sizes"]:
            one = add("enumeration", match["integer"] or "")
            for value in re.finditer(r"(\w+) = (-?\d+),?\s*(/\*\*<.*?\*/)?", match["values"] or match["sizes"], re.S):
                one.members.append((value[1], int(value[2]), clean(value[3] or "")))
        elif match["bare"]:
            add("integer", match["bare"])
        elif match["hook"] or match["function"]:
            one = add("hook" if match["hook"] else "function", match["hook"] or match["function"])
            one.returns = re.sub(r"\s*\*", "*", match["hook_returns"] or match["returns"]).strip()
            parameters = match["hook_parameters"] or match["parameters"] or ""
            for parameter in [] if parameters.strip() in ("", "void") else parameters.split(","):
                kind, name, _ = split_type(parameter.strip())
                one.members.append((name, kind, described(doc, name)))
        elif match["macro"]:
            add("constant", match["macro"]).members.append((match["macro"], int(match["number"]), doc))
    return found


def described(doc, parameter):
    """What a function's comment says of a parameter."""
    match = re.search(r"\\param\s+%s\b(.*?)(?=\\param|\\returns|\\threads|\\since|\Z)" % parameter, doc, re.S)
    return match[1].strip() if match else ""


class Checker:
    def __init__(self, declarations):
        self.declarations = declarations
        self.problems = []
        by = lambda kind: {one.name: one for one in declarations if one.kind == kind}
        self.handles, self.structs, self.hooks, self.functions = by("handle"), by("struct"), by("hook"), by("function")
        self.fields = {name for one in self.structs.values() for name, _, _ in one.members}

    def fail(self, one, what):
        self.problems.append("%d: %s: %s" % (one.line, one.name, what))

    def check_marks(self, one, name, marks, needed, names):
        for mark in needed:
            if mark not in marks:
                self.fail(one, "%s lacks \\%s" % (name, mark))
        for mark, allowed in ALLOWED.items():
            if mark in marks and marks[mark] not in allowed:
                self.fail(one, "%s has \\%s %s" % (name, mark, marks[mark]))
        if "length" in marks and marks["length"] != "string":
            for word in re.findall(r"[a-z]\w*(?:\.\w+)?", marks["length"]):
                first, _, field = word.partition(".")
                known = names if not field else names | {handle.partition("_")[2] for handle in self.handles}
                if word in ("sum", "strided"):
                    continue
                if first not in known and first.rstrip("s") not in known or field and field not in self.fields:
                    self.fail(one, "%s has \\length with %s, which is nothing here" % (name, word))

    def check_pointer(self, one, name, kind, text, names, is_field):
        """A parameter or field that is a pointer or a hook."""
        prose, marks = marks_of(text)
        if re.search(r"\bNULL(:| is| exactly| for| \()", prose) and "nullable" not in marks:
            self.fail(one, "%s speaks of NULL but lacks \\nullable" % name)
        target = kind.replace("const", "").replace(" ", "").rstrip("*")
        depth = kind.count("*")
        if kind in self.hooks or kind == "void*" and not is_field and name == "user":
            return self.check_marks(one, name, marks, ["nullable", "keeps"], names)
        if target in self.handles:
            if depth == 1:
                return self.check_marks(one, name, marks, ["keeps"] if is_field else [], names)
            if kind == target + "**":
                if name != "result":
                    self.fail(one, "a handle comes out as %s, not as result" % name)
                parent = marks.get("parent", "").partition(".")[0]
                if one.name != "kvq_context_create" and parent not in names:
                    self.fail(one, "result lacks \\parent, or names no parameter")
                return None
        elif target in self.structs and depth == 1:
            return None
        if kind == "void*" and (name.endswith("user") or name == "stream"):
            return self.check_marks(one, name, marks, ["nullable", "keeps"], names)
        return self.check_marks(one, name, marks, ["length", "memory", "keeps"], names)

    def check(self):
        for one in self.declarations:
            names = {name for name, _, _ in one.members}
            for name in names | {one.name}:
                if name in KEYWORDS:
                    self.fail(one, "%s is a keyword of Python, Rust, Go or C#" % name)
            getattr(self, "check_" + one.kind)(one, names)
        return self.problems

    def check_constant(self, one, names):
        pass

    def check_integer(self, one, names):
        self.fail(one, "no enumerators follow")

    def check_enumeration(self, one, names):
        if one.name and "values" not in marks_of(one.doc)[1]:
            self.fail(one, "lacks \\values")
        for name, _, doc in one.members:
            if not doc:
                self.fail(one, "%s has no comment" % name)

    def check_handle(self, one, names):
        end = marks_of(one.doc)[1].get("destroy")
        if end not in self.functions:
            self.fail(one, "lacks \\destroy, or it is no function")

    def check_hook(self, one, names):
        if not one.doc:
            self.fail(one, "has no comment")

    def check_struct(self, one, names):
        if one.members[0][:2] != ("struct_size", "uint32_t"):
            self.fail(one, "does not begin with struct_size")
        for function in self.functions.values():  # lengths may name parameters of the call that takes the struct
            if any(kind.strip() == "const %s*" % one.name for _, kind, _ in function.members):
                names = names | {name for name, _, _ in function.members}
        is_output = one.name.endswith(("_info", "_error", "_usage"))
        for name, kind, doc in one.members:
            if name.startswith("reserved") and doc != "0.":
                self.fail(one, "%s does not say that it is 0" % name)
            if is_output and "*" in kind:
                self.check_marks(one, name, marks_of(doc)[1], ["length", "keeps"], names)
            elif "*" in kind or kind in self.hooks:
                self.check_pointer(one, name, kind, doc, names, True)

    def check_function(self, one, names):
        for mark in ("threads", "since"):
            if "\\" + mark not in one.doc:
                self.fail(one, "lacks \\%s" % mark)
        if one.returns == "kvq_status":
            if "\\returns" not in one.doc:
                self.fail(one, "lacks \\returns")
            if not one.members or one.members[-1][:2] != ("error", "kvq_error*"):
                self.fail(one, "does not take an error last")
        elif "*" in one.returns:
            returns = one.doc.partition("\\returns")[2]
            needed = ["keeps"] if one.returns.rstrip("*") in self.handles else ["length", "keeps"]
            self.check_marks(one, "what it returns", marks_of(re.split(r"\\threads", returns)[0])[1], needed, names)
        for word in re.findall(r"\\param\s+(\w+)", one.doc):
            if word not in names:
                self.fail(one, "describes a parameter %s that it does not have" % word)
        for name, kind, doc in one.members:
            if name == "error" and one.returns == "kvq_status":
                continue
            if one.name.endswith(("_destroy", "_init")) and "*" in kind:
                self.check_marks(one, name, marks_of(doc)[1], ["nullable"], names)
            elif "*" in kind or kind in self.hooks:
                self.check_pointer(one, name, kind, doc, names, False)


def constants(declarations):
    for one in declarations:
        if one.kind in ("enumeration", "constant") and not one.experimental:
            if one.name.startswith(("KVQ_VERSION_", "KVQ_API_VERSION")):  # what releases change
                continue
            for name, value, _ in one.members:
                yield "%s %d" % (name, value)


def fields(declarations):
    for one in declarations:
        for index, (name, kind, _) in enumerate(one.members):
            if one.kind == "struct" and not one.experimental:
                yield "%s %d %s %s" % (one.name, index, name, kind)


def cut(text, path):
    with open(path, encoding="utf-8") as file:
        known = collections.Counter(line.split()[0] for line in file)

    def shorter(match):
        kept = list(fields_in(match[2]))[: known[match[1]] or None]
        return "typedef struct %s {%s\n} %s;" % (match[1], "".join(field[0] for field in kept), match[1])

    return re.sub(r"typedef struct (\w+) \{(.*?)\} \w+;", shorter, text, flags=re.S)


def source(declarations):
    yield '#include "kvq.h"'
    for one in declarations:
        if one.kind == "function" and not one.experimental:
            parameters = ", ".join("%s %s" % (kind, name) for name, kind, _ in one.members) or "void"
            body = "" if one.returns == "void" else " return 0; "
            yield "%s %s(%s) {%s}" % (one.returns, one.name, parameters, body)


def main(path, *options):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    declarations = parse(text)
    for option, lines in ("--constants", constants), ("--fields", fields), ("--source", source):
        if option in options:
            print("\n".join(lines(declarations)))
            return 0
    if "--cut" in options:
        print(cut(text, options[1]))
        return 0
    if "--symbols" in options:
        for one in sorted((one for one in declarations if one.kind == "function"), key=lambda one: one.name):
            print(one.name + (" experimental" if one.experimental else ""))
        return 0
    problems = Checker(declarations).check()
    n_functions = sum(one.kind == "function" for one in declarations)
    if n_functions != len(re.findall(r"^KVQ_API ", text, re.M)):
        problems.append("%d functions were understood, KVQ_API occurs %d times" %
                        (n_functions, len(re.findall(r"^KVQ_API ", text, re.M))))
    for problem in problems:
        print("FAILED: %s:%s" % (path, problem), file=sys.stderr)
    if not problems:
        print("ok: %d functions, %d structs" % (n_functions, sum(one.kind == "struct" for one in declarations)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else main("include/kvq.h"))
