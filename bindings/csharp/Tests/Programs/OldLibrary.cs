using System;
using Kvq;

/// Run with a library of a smaller API version: every way in says so.
static class OldLibrary
{
    static void Expect(Action call)
    {
        try
        {
            call();
            Console.WriteLine("nothing was thrown");
        }
        catch (LibraryVersionException exception)
        {
            string line = string.Format("{0} ({1}, {2}, {3})", exception.Message, exception.Found, exception.Needed,
                                        exception.LibraryVersion);
            Console.WriteLine(line.Replace('\ufffd', '?')); // what stands for bytes that are no UTF-8
        }
    }

    static void Main()
    {
        Expect(() => new Context());
        Expect(() => new ContextOptions());
        Expect(() => Library.CpuIsas());
    }
}
