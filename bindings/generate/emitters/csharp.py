"""C#: the raw layer, enumerations, options, descriptions, simple methods and the layout test."""
from emitters import _csharp_objects
from emitters._csharp import IDIOMATIC, RAW, Names, file, has_class, pascal, property_name, raw_type, type_name
from emitters._text import choice_text, counts_of, flag_text, is_choice, is_flag

FOLDER = "bindings/csharp/"
# Fields that the hand-written half of a class computes.
BY_HAND = {"kvq_append_batch": {"dtype"},
           "kvq_attend_batch": {"q_dtype", "output_dtype"},
           "kvq_extend_batch": {"dtype", "q_dtype", "output_dtype"},
           "kvq_pool_call": {"n_tokens", "dtype", "q_dtype", "output_dtype"}}


def summary(field):
    return {"documentation": field["documentation"] or "%s." % pascal(field["name"])}


def functions(names, experimental):
    lines = ["    /// <summary>The %sfunctions of the C API under their C names.</summary>" %
             ("experimental " if experimental else ""),
             "    public static unsafe class %s" % ("ExperimentalNative" if experimental else "Native"), "    {"]
    if not experimental:
        # Not "kvq": to Windows, Kvq.dll is the file of that name.
        lines += ["        /// <summary>Library name that is passed to the loader.</summary>",
                  '        public const string Library = "libkvq";', ""]
    for one in names.api["functions"]:
        if one["experimental"] != experimental:
            continue
        lines += names.documentation(one, "        ", ("Threads: " + one["threads"], "Since " + one["since"] + "."))
        for parameter in one["parameters"]:
            if parameter["documentation"]:
                lines += names.block('param name="%s"' % parameter["name"], [names.prose(parameter["documentation"])],
                                     "        ")
            else:
                lines.append('        /// <param name="%s">The %s.</param>' % (parameter["name"], parameter["name"]))
        if raw_type(one["returns"]) != "void":
            lines += names.block("returns", [names.prose(one["returns"]["documentation"]) or "The value that the summary describes."], "        ")
        lines += ["        [DllImport(%s, CallingConvention = CallingConvention.Cdecl, ExactSpelling = true)]" %
                  ("Native.Library" if experimental else "Library"),
                  "        public static extern %s %s(%s);" % (raw_type(one["returns"]), one["name"], arguments(one)), ""]
    lines[-1] = "    }"
    return lines


def arguments(one, hook=False):
    types = [raw_type(parameter) for parameter in one["parameters"]]
    if hook:
        types = ["IntPtr" if kind == "void*" else kind for kind in types]
    return ", ".join("%s %s" % pair for pair in zip(types, (parameter["name"] for parameter in one["parameters"])))


def structs(names):
    lines = []
    for one in names.api["hooks"]:
        lines += names.documentation(one)
        returns = raw_type(one["returns"])
        lines += ["    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]",
                  "    public unsafe delegate %s %s(%s);" % ("IntPtr" if returns == "void*" else returns, one["name"],
                                                            arguments(one, hook=True)), ""]
    for one in names.api["structs"]:
        lines += names.documentation(one) + ["    [StructLayout(LayoutKind.Sequential)]",
                                             "    public unsafe struct %s" % one["name"], "    {"]
        for field in one["fields"]:
            lines += names.documentation(summary(field), "        ")
            if field["type"]["kind"] == "array":
                element = raw_type({"type": field["type"]["of"]})
                lines.append("        public fixed %s %s[%d];" % (element, field["name"], field["type"]["count"]))
            else:
                lines.append("        public %s %s;" % (raw_type(field), field["name"]))
        lines += ["    }", ""]
    return lines[:-1]


def handles(names):
    lines = []
    for one in names.api["handles"]:
        if not one["experimental"]:
            lines += ["    internal sealed class %sHandle : Handle" % type_name(one["name"]), "    {",
                      "        protected override void Destroy(IntPtr it) => Native.%s(it);" % one["destroy"], "    }", ""]
    return lines[:-1]


def enumerations(names, experimental):
    lines = []
    for one in names.api["enumerations"]:
        if not one["name"] or one["experimental"] != experimental:
            continue
        lines += names.documentation(one) + ["    public enum %s" % type_name(one["name"]), "    {"]
        for value in one["values"]:
            lines += names.documentation(value, "        ")
            lines.append("        %s = %d," % (names.member(one, value["name"]), value["value"]))
        lines += ["    }", ""]
    return lines[:-1]


def constants(names):
    lines = ["    /// <summary>Constants of the header that this file was generated from.</summary>",
             "    public static class Constants", "    {"]
    nameless = [value for one in names.api["enumerations"] if not one["name"] for value in one["values"]]
    for one in names.api["constants"] + nameless:
        lines += names.documentation(one, "        ")
        lines.append("        public const int %s = %d;" % (pascal(one["name"].partition("_")[2]), one["value"]))
    lines += ["", "        /// <summary>Version of the header.</summary>",
              '        public const string Version = "%s";' % names.api["version"], "    }"]
    return lines


def is_text(field):
    return field.get("length") == "string"


def is_scalar(field):
    return field["type"]["kind"] in ("integer", "float", "enumeration") or field["name"] == "stream"


def managed_type(field):
    """The type of a property that is passed on only during a call; None if the struct keeps the value or code by hand does."""
    to = field["type"].get("to", {})
    if is_text(field) or to.get("kind") == "handle":
        return "string" if is_text(field) else type_name(to["name"])
    if to.get("kind") == "struct":
        return type_name(to["name"]) + "[]"
    return raw_type({"type": to}) + "[]" if to.get("kind") in ("float", "integer") and field["memory"] == "host" else None


def tensors(names, one):
    """The classes of a batch whose tensors are in host memory, and in device memory."""
    lines, name = [], type_name(one["name"])
    fields = [field for field in one["fields"] if field.get("memory") == "context"]
    for prefix, where in ("", "In host memory."), ("Device", "In device memory, whose size is not checked."):
        lines += names.documentation(dict(one, documentation="%s %s" % (one["documentation"], where)))
        lines += ["    public sealed class %s%s : %sBase" % (prefix, name, name), "    {"]
        for field in fields:
            host = "Tensor" if field["type"]["to"]["kind"] == "void" else raw_type({"type": field["type"]["to"]}) + "[]"
            lines += names.documentation(summary(field), "        ")
            lines += ["        public %s %s { get; set; }" % ("IntPtr" if prefix else host, property_name(one, field)), ""]
        if prefix:
            lines += [line for field in one["fields"] if field["c"] == "kvq_dtype" for line in scalar(names, one, field) + [""]]
        lines[-1:] = ["    }", ""]
    return lines


def scalar(names, one, field):
    """A property of a number in the raw struct."""
    given, get, value = raw_type(field), "raw." + field["name"], "value"
    if is_choice(field):
        given, get, value = "bool", get + " != 0", "value ? 1 : 0"
    return names.documentation(summary(dict(field, documentation=choice_text(field))), "        ") + [
        "        public %s %s" % (given, property_name(one, field)), "        {",
        "            get => %s;" % get, "            set => raw.%s = %s;" % (field["name"], value), "        }"]


def shown(one):
    """Fields that callers see."""
    return [field for field in one["fields"] if field["name"] != "struct_size" and
            not field["name"].startswith("reserved") and field["name"] not in BY_HAND.get(one["name"], ()) and
            field["name"] not in counts_of(one)]


def options(names, one):
    """A class around the raw struct, whose other half is written by hand where there are hooks, arrays or handles."""
    batch = one["name"].endswith(("_batch", "_call"))
    name = type_name(one["name"]) + ("Base" if batch else "")
    names.inside(one)
    lines = names.documentation(one) + [
        "    public %spartial class %s" % ("abstract " if batch else "sealed ", name), "    {",
        "        internal %s raw = Defaults();" % one["name"], "",
        "        static unsafe %s Defaults()" % one["name"], "        {", "            Library.Require();",
        "            var it = default(%s);" % one["name"],
        "            Native.%s(&it, (UIntPtr)sizeof(%s));" % (one["init"], one["name"]), "            return it;", "        }"]
    for field in shown(one):
        if is_scalar(field):
            lines += [""] + scalar(names, one, field)
        elif managed_type(field):
            lines += [""] + names.documentation(summary(field), "        ")
            lines.append("        public %s %s { get; set; }" % (managed_type(field), property_name(one, field)))
    return lines + ["    }", ""] + (tensors(names, one) if batch else [])


def description(names, one):
    name = type_name(one["name"])
    properties, assignments = [], []
    names.inside(one)
    for field in shown(one):
        kind, target = field["type"]["kind"], property_name(one, field)
        if kind == "array" and field["type"]["of"]["kind"] == "character":
            shape, value = "string", "Text.Read(raw->%s, %d)" % (field["name"], field["type"]["count"])
        elif kind == "array":
            shape = raw_type({"type": field["type"]["of"]}) + "[]"
            value = "Copy(raw->%s, %d)" % (field["name"], field["type"]["count"])
        elif is_text(field):
            shape, value = "string", "Text.Read(raw->%s)" % field["name"]
        elif is_flag(field):
            shape, value = "bool", "raw->%s != 0" % field["name"]
        else:
            shape, value = raw_type(field), "raw->" + field["name"]
        properties += [""] + names.documentation(summary(dict(field, documentation=flag_text(field))), "        ")
        properties.append("        public %s %s { get; }" % (shape, target))
        assignments.append("            %s = %s;" % (target, value))
    lines = names.documentation(one) + ["    public sealed class %s" % name, "    {",
                                        "        internal unsafe %s(%s* raw)" % (name, one["name"]), "        {"]
    lines += assignments + ["        }"] + properties
    lines += ["", "        /// <summary>Lists the properties, for logs.</summary>",
              '        public override string ToString() => Text.Shown("%s"' % name]
    lines[-1] += "".join(',\n            "%s", %s' % (it, it) for it in (property_name(one, field) for field in shown(one)))
    lines[-1] += ");"
    for element in sorted({raw_type({"type": field["type"]["of"]}) for field in shown(one)
                           if field["type"]["kind"] == "array" and field["type"]["of"]["kind"] != "character"}):
        lines += ["", "        static unsafe %s[] Copy(%s* from, int count)" % (element, element), "        {",
                  "            var to = new %s[count];" % element, "            for (int i = 0; i < count; ++i) to[i] = from[i];",
                  "            return to;", "        }"]
    return lines + ["    }", ""]


def classes(names, make, endings):
    lines = []
    for one in names.api["structs"]:
        if one["name"].endswith(endings) and has_class(one):
            lines += make(names, one)
    return lines[:-1]


def layout(names):
    lines = ["    /// Checks the binary layout of every struct on 64-bit platforms.", "    static unsafe class Layout", "    {",
             "        internal static void Check()", "        {"]
    for one in names.api["structs"]:
        lines += ["            {", "                var it = default(%s);" % one["name"], "                byte* start = (byte*)&it;",
                  '                Test.Equal(%d, sizeof(%s), "sizeof %s");' % (one["size"], one["name"], one["name"])]
        for field in one["fields"]:
            address = "it.%s" % field["name"] if field["type"]["kind"] == "array" else "&it.%s" % field["name"]
            lines.append('                Test.Equal(%d, (byte*)%s - start, "%s.%s");' %
                         (field["offset"], address, one["name"], field["name"]))
        lines.append("            }")
    lines += ["        }", "    }"]
    return lines


def emit(api):
    raw, names = Names(api, raw=True), Names(api, raw=False)
    kvq = FOLDER + "Kvq/"
    assembly = ["// <auto-generated/>", "using System.Reflection;", "",
                '[assembly: AssemblyTitle("Kvq")]', '[assembly: AssemblyVersion("%s.0")]' % api["version"],
                '[assembly: AssemblyInformationalVersion("%s")]' % api["version"], ""]
    return {
        kvq + "Raw/Native.g.cs": file(RAW, functions(raw, False)),
        kvq + "Raw/ExperimentalNative.g.cs": file(RAW, enumerations(raw, True) + [""] + functions(raw, True)),
        kvq + "Raw/Structs.g.cs": file(RAW, structs(raw)),
        kvq + "Raw/Handles.g.cs": file(RAW, handles(raw), ("System",)),
        kvq + "Enumerations.g.cs": file(IDIOMATIC, enumerations(names, False) + [""] + constants(names), ()),
        kvq + "Options.g.cs": file(IDIOMATIC, classes(names, options, ("_options", "_batch", "_call", "_shape", "_range")), ("System", RAW)),
        kvq + "Descriptions.g.cs": file(IDIOMATIC, classes(names, description, ("_info", "_usage", "_layout")), ("System", RAW)),
        kvq + "Objects.g.cs": file(IDIOMATIC, _csharp_objects.objects(names), ("System", RAW)),
        kvq + "AssemblyInfo.g.cs": "\n".join(assembly),
        FOLDER + "Tests/Layout.g.cs": file("Kvq.Tests", layout(raw), (RAW,)),
    }
