using System;
using System.Collections.Generic;
using System.Reflection;
using Kvq.Raw;

namespace Kvq.Tests
{
    /// Runs every public static method of every class whose name ends in "Tests"; `mono Tests.exe [PART OF A NAME]`.
    static class Test
    {
        sealed class Failure : Exception
        {
            internal Failure(string message) : base(message) { }
        }

        sealed class Skipped : Exception
        {
            internal Skipped(string reason) : base(reason) { }
        }

        internal static void True(bool condition, string what)
        {
            if (!condition) throw new Failure(what);
        }

        internal static void Equal<T>(T expected, T found, string what)
        {
            if (!EqualityComparer<T>.Default.Equals(expected, found))
                throw new Failure(what + " is " + found + ", expected " + expected);
        }

        internal static void Near(double expected, double found, double tolerance, string what)
        {
            if (!(Math.Abs(expected - found) <= tolerance))
                throw new Failure(what + " is " + found + ", expected " + expected + " within " + tolerance);
        }

        internal static void Same(float[] expected, float[] found, string what)
        {
            Equal(expected.Length, found.Length, what + "'s length");
            for (int i = 0; i < found.Length; ++i) Equal(expected[i], found[i], what + "[" + i + "]");
        }

        /// `part` of the message names the argument.
        internal static T Throws<T>(string part, Action call) where T : Exception
        {
            try
            {
                call();
            }
            catch (T exception)
            {
                True(exception.Message.Contains(part), "the message \"" + exception.Message + "\" lacks \"" + part +
                    "\"");
                return exception;
            }
            throw new Failure("nothing was thrown, expected " + typeof(T).Name + " with \"" + part + "\"");
        }

        internal static void Refused(Status status, string part, Action call) =>
            Equal(status, Throws<KvqException>(part, call).Status, "status");

        internal static void Wrong(string part, Action call) => Throws<ArgumentException>(part, call);

        internal static void Skip(string reason) => throw new Skipped(reason);

        static int Main(string[] arguments)
        {
            int passed = 0, failed = 0;
            foreach (Type type in Assembly.GetExecutingAssembly().GetTypes())
            {
                if (!type.Name.EndsWith("Tests")) continue;
                foreach (MethodInfo method in type.GetMethods(BindingFlags.Public | BindingFlags.Static))
                {
                    string name = type.Name + "." + method.Name;
                    if (arguments.Length > 0 && name.IndexOf(arguments[0], StringComparison.OrdinalIgnoreCase) < 0)
                        continue;
                    try
                    {
                        ((Action)Delegate.CreateDelegate(typeof(Action), method))();
                        ++passed;
                    }
                    catch (Skipped skipped)
                    {
                        Console.WriteLine("skipped " + name + ": " + skipped.Message);
                    }
                    catch (Exception exception)
                    {
                        ++failed;
                        Console.WriteLine("FAILED " + name + ": " +
                            (exception is Failure ? exception.Message : exception.ToString()));
                    }
                }
            }
            Console.WriteLine(passed + " passed, " + failed + " failed");
            return failed == 0 ? 0 : 1;
        }
    }
}
