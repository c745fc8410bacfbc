"""Generated methods of package kvq, and types that have no other methods."""
from emitters import _methods
from emitters._go import camel, pascal

HAND_OVER = "buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {"


def method(names, object_name, it):
    raw, name = "raw." + names.go[it.function["name"]], pascal(it.name)
    inputs = [camel(one["name"]) for one in it.inputs]
    returns = {"file": "([]byte, error)", "text": "(string, error)", "number": "(int, error)", "nothing": "error",
               "description": "(%s, error)" % (it.struct and names.go[it.struct])}[it.gives]
    told = names.go[it.struct][:1].lower() + names.go[it.struct][1:] + "From" if it.struct else ""
    numbers = "".join("n[%d], " % at for at in range(len(inputs)))
    none = {"file": "nil, err", "number": "0, err"}.get(it.gives, "err")
    narrow = ["var n [%d]int32" % len(inputs), "if err := firstOf(%s); err != nil {" % ", ".join(
        "narrow(\"%s\", %s, &n[%d])" % (one, one, at) for at, one in enumerate(inputs)), "\treturn " + none, "}"]
    if it.gives == "file" and not inputs:
        body = ["return it.save(%s)" % raw]
    elif it.gives == "file":
        body = narrow + ["return it.save(func(it *raw.%s, %s" % (object_name, HAND_OVER),
                         "\treturn %s(it, %sbuffer, capacity, size, err)" % (raw, numbers), "})"]
    elif it.gives == "text":
        body = ["text, err := it.save(func(it *raw.%s, %s" % (object_name, HAND_OVER),
                "\treturn %s(it, (*byte)(buffer), capacity, size, err)" % raw, "})", "return string(text), err"]
    elif it.gives == "description" and not inputs:
        body = ["return described(&it.handle, %s, %s)" % (raw, told)]
    elif it.gives == "description":
        body = ["return describedPart(&it.handle, \"%s\", %s, %s, %s)" % (inputs[0], inputs[0], raw, told)]
    else:
        body = narrow + [
            "return it.%serr *raw.Error) raw.Status {" % (
                "count(func(to *int32, " if it.gives == "number" else "call(exclusive, func("),
            "\treturn %s(%sit.raw, %s%serr)" % (raw, "it.owner, " if it.of_cache else "", numbers,
                                               "to, " if it.gives == "number" else ""), "})"]
    parameters = ", ".join(inputs) + (" int" if inputs else "")
    return names.declaration(name, it.function["documentation"], None, {one["name"] for one in it.inputs}, "raw.") + \
        "func (it *%s) %s(%s) %s {\n\t%s\n}\n" % (object_name, name, parameters, returns, "\n\t".join(body))


def go(names):
    parts = ["package kvq\n", "import (\n\t\"unsafe\"\n\n\t\"kvq/raw\"\n)\n"]
    for handle, load, methods in _methods.objects(names.api):
        name = names.go[handle["name"]]
        if load:
            parts += [names.declaration(name, handle["documentation"], None, prefix="raw.") +
                      "type %s struct{ handle[raw.%s] }\n" % (name, name),
                      names.declaration("Load" + name, load["documentation"], None, prefix="raw.") +
                      "func (x *Context) Load%s(file []byte) (*%s, error) {\n\tit := new(%s)\n" % (name, name, name) +
                      "\treturn load(x, it, &it.handle, raw.%sDestroy, \"file\", file, raw.%s)\n}\n" % (
                          name, names.go[load["name"]])]
        # Written by hand: saving a sequence locks its cache, too.
        parts += [method(names, name, it) for it in methods if not (it.of_cache and it.gives == "file")]
    return "\n".join(parts)
