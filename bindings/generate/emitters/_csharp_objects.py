"""Methods of C# that follow from the header by rules, and classes that have no others."""
from emitters._csharp import pascal, type_name
from emitters._text import target_of

# Methods that keep what they were told, or that have a default.
METHODS_BY_HAND = {"kvq_cache_describe", "kvq_cache_predict_usage", "qp_matrix_describe"}


def camel(name):
    return name[:1] + pascal(name)[1:]


def signature(names, one, inputs, returns, name, inherited="", said=None):
    """Documentation and head of a method."""
    lines = names.documentation(one, "        ")
    for parameter in inputs:
        text = names.prose(parameter["documentation"]) or "The %s." % parameter["name"]
        lines += names.block('param name="%s"' % camel(parameter["name"]), [text], "        ")
    if returns != "void":
        lines.append("        /// <returns>%s</returns>" % said)
    arguments = ", ".join("int " + camel(parameter["name"]) for parameter in inputs)
    return lines + ["        public %s %s(%s)%s" % (returns, name, arguments, inherited)]


def method(names, handle, one):
    """A method by the rules that most follow: numbers go in, a description, a file or a number comes out, or nothing. None
    where it is written by hand."""
    if one["name"] in METHODS_BY_HAND or one["returns"]["c"] != "kvq_status":
        return None
    parameters = one["parameters"][:-1]
    of_cache = handle["name"] == "kvq_sequence" and parameters[0]["name"] == "cache"
    if of_cache:
        parameters = parameters[1:]
    if parameters[0]["c"].removeprefix("const ") != handle["name"] + "*":
        return None
    inputs, output = parameters[1:], None
    if [it["name"] for it in inputs[-3:]] == ["buffer", "capacity", "size"]:
        inputs, output = inputs[:-3], inputs[-3]
    elif inputs and inputs[-1]["type"]["kind"] == "pointer":
        inputs, output = inputs[:-1], inputs[-1]
    is_known = not output or output["name"] == "buffer" or output["c"] == "int32_t*" or output["type"]["to"]["kind"] == "struct"
    if not is_known or any(it["c"] != "int32_t" for it in inputs):
        return None
    name, native = pascal(one["name"][len(handle["name"]):]), "Native." + one["name"]
    before = "cachePointer, " if of_cache else ""
    if output and output["name"] == "buffer":
        is_text = target_of(output["type"])["kind"] == "character"
        call = "Files.Save(this, (it, buffer, capacity, size, error) =>\n                %s(%sit, %sbuffer, capacity, size, error))" % (
            native, before, "(byte*)" if is_text else "")
        if is_text:
            call = "System.Text.Encoding.UTF8.GetString(%s)" % call
        head = signature(names, one, inputs, "string" if is_text else "byte[]", name, " =>",
                         "The text." if is_text else "The bytes.")
        return head + ["            %s;" % call]
    body, returns, said, found = ["var error = Call.Error();"], "void", None, None
    if output and output["type"]["to"]["kind"] == "struct":
        struct = output["type"]["to"]["name"]
        body.append("var found = new %s { struct_size = (uint)sizeof(%s) };" % (struct, struct))
        returns, said, found = type_name(struct), "The description.", "new %s(&found)" % type_name(struct)
    elif output:
        body.append("int found;")
        returns, said, found = "int", "The number.", "found"
    arguments = "".join(camel(it["name"]) + ", " for it in inputs) + ("&found, " if output else "")
    alone = "" if "const" in parameters[0]["c"] else "alone: true"
    body += ["using (Use it = Use(%s))" % alone,
             "    Call.Check(%s(%sit, %s&error), &error, Hooks);" % (native, before, arguments)]
    body += ["return %s;" % found] if found else []
    return signature(names, one, inputs, returns, name, "", said) + ["        {"] + ["            " + line for line in body] + ["        }"]


def loader(names, handle, one):
    """How an object is made from a file alone."""
    name = type_name(handle["name"])
    return ["        %s(%sHandle handle, Hooks hooks) : base(handle, hooks) { }" % (name, name), ""] + \
        names.documentation(one, "        ") + [
            '        /// <param name="context">Where its memory comes from.</param>',
            '        /// <param name="file">The bytes of the file.</param>', "        /// <returns>The object.</returns>",
            "        public static %s Load(Context context, byte[] file)" % name, "        {",
            "            var handle = new %sHandle();" % name,
            "            Files.Load(context, file, nameof(file), handle, Native.%s);" % one["name"],
            "            return new %s(handle, context.Hooks);" % name, "        }"]


def objects(names):
    lines = []
    for handle in names.api["handles"]:
        if handle["experimental"]:
            continue
        owned = [one for one in names.api["functions"] if one["name"].startswith(handle["name"] + "_") and not one["experimental"]]
        load = next((loader(names, handle, one) for one in owned
                     if [it["name"] for it in one["parameters"]] == ["context", "buffer", "size", "result", "error"]), None)
        methods = [one for one in [load] + [method(names, handle, one) for one in owned] if one]
        if not methods:
            continue
        lines += names.documentation(handle) if load else []
        lines += ["    public sealed unsafe partial class %s : NativeObject" % type_name(handle["name"]), "    {"]
        for one in methods:
            lines += one + [""]
        lines[-1:] = ["    }", ""]
    return lines[:-1]
