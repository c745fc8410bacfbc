"""Hooks of Go: C functions that call a method through a runtime/cgo.Handle, and Go functions that call a C hook."""
from emitters._go import camel


def short(names, one):
    return names.go[one["name"]].removesuffix("Hook")


def has_user(one):
    """Whether the host implements the function; it only calls the body of a loop."""
    return one["name"].endswith("_hook")


def arguments(one):
    return one["parameters"][1:]


def go_type(names, it):
    kind = it["type"]
    if kind["kind"] == "hook":
        return names.go[kind["name"]]
    return names.type(kind, it["name"])


def flat(it):
    """A parameter's type in a function that Go exports: no const, and C memory as a number."""
    kind = it["type"]
    if kind["kind"] == "pointer" and kind["to"]["kind"] == "void":
        return "uintptr_t"
    if kind["kind"] == "pointer":
        return "char*"
    if kind["kind"] == "hook":
        return "uintptr_t"
    return kind["name"]


def caller_c(names, one):
    """The shim through which Go calls a function pointer from C."""
    parameters = ", ".join("uintptr_t %s" % it["name"] if it["c"] == "void*" else "%s %s" % (it["c"], it["name"])
                           for it in one["parameters"])
    values = ", ".join("(void*)" + it["name"] if it["c"] == "void*" else it["name"] for it in one["parameters"])
    returns = one["returns"]["c"]
    return "static inline %s kvq_go_call_%s(%s hook, %s) {\n  %shook(%s);\n}\n" % (
        returns, one["name"], one["name"], parameters, "return " if returns != "void" else "", values)


def hook_type(names, one):
    name = names.go[one["name"]]
    lines = [names.declaration(name, one["documentation"] + "\n\nA C function.", one,
                               {it["name"] for it in one["parameters"]}) + "type %s unsafe.Pointer\n" % name]
    parameters, values = [], []
    for it in one["parameters"]:
        go = camel(it["name"])
        if it["c"] == "void*":
            parameters.append("%s uintptr" % go)
            values.append("C.uintptr_t(%s)" % go)
        else:
            parameters.append("%s %s" % (go, go_type(names, it)))
            values.append("(*C.char)(unsafe.Pointer(%s))" % go if it["type"]["kind"] == "pointer" else
                          "C.%s(unsafe.Pointer(%s))" % (it["type"]["name"], go) if it["type"]["kind"] == "hook" else
                          "C.%s(%s)" % (it["type"]["name"], go))
    call = "C.kvq_go_call_%s(C.%s(unsafe.Pointer(hook)), %s)" % (one["name"], one["name"], ", ".join(values))
    returns = one["returns"]["type"]
    answer = "" if returns["kind"] == "void" else " uintptr" if returns["kind"] == "pointer" else " int32"
    if answer:
        call = "return %s(%s)" % (answer.strip(), "unsafe.Pointer(%s)" % call if "ptr" in answer else call)
    lines.append("// Call%s calls a %s." % (name, name))
    lines.append("func Call%s(hook %s, %s)%s {\n\t%s\n}\n" % (name, name, ", ".join(parameters), answer, call))
    return "\n".join(lines)


def callback(names, one):
    """The path from C to a Go function."""
    name, function = short(names, one), "kvq_go_" + one["name"]
    types = ", ".join("%s %s" % (camel(it["name"]), "uintptr" if flat(it) == "uintptr_t" and it["type"]["kind"] != "hook"
                                 else go_type(names, it)) for it in arguments(one))
    parameters = ["user C.uintptr_t"] + [
        "%s %s" % (camel(it["name"]), "*C.char" if flat(it) == "char*" else "C." + flat(it)) for it in arguments(one)]
    values = []
    for it in arguments(one):
        go = camel(it["name"])
        if it["type"]["kind"] == "hook":
            values.append("*(*%s)(unsafe.Pointer(&%s))" % (names.go[it["type"]["name"]], go))
        elif flat(it) == "char*":
            values.append("(*byte)(unsafe.Pointer(%s))" % go)
        else:
            values.append("%s(%s)" % ("uintptr" if flat(it) == "uintptr_t" else go_type(names, it), go))
    returns = one["returns"]["type"]
    answer = {"void": "", "pointer": " uintptr"}.get(returns["kind"], " int32")
    c_answer = {"void": "", "pointer": " C.uintptr_t"}.get(returns["kind"], " C.int32_t")
    call = "cgo.Handle(user).Value().(%sHost).%s(%s)" % (name, name, ", ".join(values))
    if answer:
        call = "return %s(%s)" % (c_answer.strip(), call)
    return "\n".join([
        "// %sHost has the method that %sCallback calls. It must neither panic nor end its goroutine." % (name, name),
        "type %sHost interface {\n\t%s(%s)%s\n}\n" % (name, name, types, answer),
        "// %sCallback is the hook whose user is the [cgo.Handle] of a [%sHost]." % (name, name),
        "func %sCallback() %s {" % (name, names.go[one["name"]]),
        "\treturn %s(C.%s)" % (names.go[one["name"]], function), "}\n",
        "//export kvqGo%s" % name,
        "func kvqGo%s(%s)%s {\n\t%s\n}\n" % (name, ", ".join(parameters), c_answer, call)])


def prototype(one):
    return "%s kvq_go_%s(%s)" % (one["returns"]["c"], one["name"],
                                 ", ".join("%s %s" % (it["c"], it["name"]) for it in one["parameters"]))


def go(names):
    hosts = [one for one in names.api["hooks"] if has_user(one)]
    lines = ["package raw\n", "/*", "#include \"shims.h\""] + [prototype(one) + ";" for one in hosts]
    lines += ["*/", "import \"C\"\n", "import (", "\t\"runtime/cgo\"", "\t\"unsafe\"", ")\n"]
    lines += [hook_type(names, one) for one in names.api["hooks"]]
    lines += [callback(names, one) for one in hosts]
    return "\n".join(lines)


def c(names):
    lines = ["/* Hooks that the library calls; each calls its exported Go function. */", "#include \"_cgo_export.h\"\n"]
    for one in names.api["hooks"]:
        if not has_user(one):
            continue
        values = ["(uintptr_t)user"] + [
            "(%s)%s" % (flat(it), it["name"]) if flat(it) in ("uintptr_t", "char*") else it["name"] for it in arguments(one)]
        call = "kvqGo%s(%s)" % (short(names, one), ", ".join(values))
        returns = one["returns"]["c"]
        if returns != "void":
            call = "return (%s)%s" % (returns, call)
        lines.append("%s {\n  %s;\n}\n" % (prototype(one), call))
    return "\n".join(lines)
