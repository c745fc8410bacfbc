"""Generated methods of C#, and classes that have no other methods."""
from emitters import _methods
from emitters._csharp import pascal, type_name


def camel(name):
    return name[:1] + pascal(name)[1:]


def method(names, it):
    """Generate the lines of a method."""
    one, native = it.function, "Native." + it.function["name"]
    given = "cachePointer, it, " if it.of_cache else "it, "
    returns, said = {"file": ("byte[]", "The bytes."), "text": ("string", "The text."), "number": ("int", "The number."),
                     "description": (it.struct and type_name(it.struct), "The description."), "nothing": ("void", "")}[it.gives]
    lines = names.documentation(one, "        ")
    for parameter in it.inputs:
        text = names.prose(parameter["documentation"]) or "The %s." % parameter["name"]
        lines += names.block('param name="%s"' % camel(parameter["name"]), [text], "        ")
    lines += ["        /// <returns>%s</returns>" % said] if said else []
    head = "        public %s %s(%s)" % (returns, pascal(it.name), ", ".join("int " + camel(one["name"]) for one in it.inputs))
    if it.gives in ("file", "text"):
        call = "Files.Save(this, (it, buffer, capacity, size, error) =>\n                %s(%s%sbuffer, capacity, size, error))" % (
            native, given + "".join(camel(one["name"]) + ", " for one in it.inputs), "(byte*)" if it.gives == "text" else "")
        return lines + [head + " =>", "            %s;" % (
            call if it.gives == "file" else "System.Text.Encoding.UTF8.GetString(%s)" % call)]
    given += "".join(camel(one["name"]) + ", " for one in it.inputs) + ("&found, " if it.gives != "nothing" else "")
    body = ["var error = Call.Error();"]
    if it.gives == "description":
        body.append("var found = new %s { struct_size = (uint)sizeof(%s) };" % (it.struct, it.struct))
    elif it.gives == "number":
        body.append("int found;")
    body += ["using (Use it = Use(%s))" % ("alone: true" if it.alone else ""),
             "    Call.Check(%s(%s&error), &error, Hooks);" % (native, given)]
    if it.gives != "nothing":
        body.append("return %s;" % ("found" if it.gives == "number" else "new %s(&found)" % returns))
    return lines + [head, "        {"] + ["            " + line for line in body] + ["        }"]


def loader(names, name, one):
    """Generate the constructor and `Load` of an object that is created from a file only."""
    return ["        %s(%sHandle handle, Hooks hooks) : base(handle, hooks) { }" % (name, name), ""] + \
        names.documentation(one, "        ") + [
            '        /// <param name="context">Allocates the memory of the object.</param>',
            '        /// <param name="file">The bytes of the file.</param>', "        /// <returns>The object.</returns>",
            "        public static %s Load(Context context, byte[] file)" % name, "        {",
            "            var handle = new %sHandle();" % name,
            "            Files.Load(context, file, nameof(file), handle, Native.%s);" % one["name"],
            "            return new %s(handle, context.Hooks);" % name, "        }"]


def objects(names):
    lines = []
    for handle, load, methods in _methods.objects(names.api):
        name = type_name(handle["name"])
        lines += names.documentation(handle) if load else []
        lines += ["    public sealed unsafe partial class %s : NativeObject" % name, "    {"]
        for one in ([loader(names, name, load)] if load else []) + [method(names, it) for it in methods]:
            lines += one + [""]
        lines[-1:] = ["    }", ""]
    return lines[:-1]
