using System;
using System.IO;
using System.Reflection;
using System.Runtime.InteropServices;
using System.Text.RegularExpressions;
using Kvq.Raw;

namespace Kvq.Tests
{
    static class LibraryTests
    {
        public static void Structs_lie_as_in_C()
        {
            Test.Equal(8, IntPtr.Size, "bytes of a pointer");
            Layout.Check();
        }

        public static void The_library_is_new_enough()
        {
            Test.True(Library.ApiVersion >= Constants.ApiVersion, "API version");
            Test.True(Regex.IsMatch(Library.Version, @"^\d+\.\d+\.\d+$"), "version " + Library.Version);
        }

        public static void Names_of_schemes_and_instruction_sets()
        {
            Test.True(Array.IndexOf(Library.Schemes(), "nuq-4") >= 0, "nuq-4 is a scheme");
            Test.Equal(2.75, Library.SchemeBits("tcq-2.75"), "bits of tcq-2.75");
            Test.Equal(0.0, Library.SchemeBits("tcq-77"), "bits of no scheme");
            string isa;
            using (var context = new Context()) isa = context.Describe().Isa;
            Test.Equal(Library.CpuIsas()[0], isa, "instruction set of a context that asks for none");
        }

        internal static string Folder => Environment.GetEnvironmentVariable("KVQ_BINDINGS");

        /// Every function of the header is declared; the library of objects or a test uses each stable one.
        public static void Every_function_is_declared_and_used()
        {
            if (string.IsNullOrEmpty(Folder)) Test.Skip("KVQ_BINDINGS does not say where bindings/ is");
            string json = File.ReadAllText(Path.Combine(Folder, "kvq-api.json"));
            string sources = "";
            foreach (string file in Directory.GetFiles(Path.Combine(Folder, "csharp"), "*.cs",
                SearchOption.AllDirectories))
                if (!file.Contains(Path.Combine("Kvq", "Raw", "")) || file.EndsWith("Handles.g.cs"))
                    sources += Regex.Replace(File.ReadAllText(file), "///.*", "");
            int functions = 0;
            foreach (Match match in Regex.Matches(json.Substring(json.IndexOf("\n \"functions\":")),
                "\n   \"name\": \"(\\w+)\""))
            {
                string name = match.Groups[1].Value;
                MethodInfo method = typeof(Native).GetMethod(name) ?? typeof(ExperimentalNative).GetMethod(name);
                Test.True(method != null, name + " is not declared");
                Test.True(method.DeclaringType == typeof(ExperimentalNative) ||
                          Regex.IsMatch(sources, @"Native\." + name + @"\b"), name + " is not used");
                Marshal.Prelink(method); // throws if the library does not export it
                ++functions;
            }
            int declared = typeof(Native).GetMethods(BindingFlags.Public | BindingFlags.Static).Length +
                           typeof(ExperimentalNative).GetMethods(BindingFlags.Public | BindingFlags.Static).Length;
            Test.Equal(functions, declared, "functions declared");
            Test.True(functions > 70, functions + " functions in kvq-api.json");
        }
    }
}
