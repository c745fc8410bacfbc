using System;
using Kvq.Raw;

namespace Kvq
{
    /// What every call of the library has in common.
    static unsafe class Call
    {
        internal static kvq_error Error() => new kvq_error { struct_size = (uint)sizeof(kvq_error) };

        /// An exception that a hook threw goes before the status that came of it.
        internal static void Check(Status status, kvq_error* error, Hooks hooks)
        {
            if (hooks != null) hooks.Rethrow();
            if (status != Status.Ok) throw new KvqException(status, error);
        }

        /// As Check, for a call that makes a handle: nothing is left of it if there is something to throw.
        internal static void Check(Status status, kvq_error* error, Hooks hooks, Handle made, IntPtr result)
        {
            made.Take(result);
            try
            {
                Check(status, error, hooks);
            }
            catch
            {
                made.Dispose();
                throw;
            }
        }
    }

    /// A call that writes a file of `it`: asked for the size first.
    unsafe delegate Status SaveCall(IntPtr it, void* buffer, UIntPtr capacity, UIntPtr* size, kvq_error* error);

    /// A call that makes a handle, with what it is made from, `it`, and a file.
    unsafe delegate Status LoadCall(IntPtr it, void* buffer, UIntPtr size, IntPtr* result, kvq_error* error);

    static unsafe class Files
    {
        internal static byte[] Save(NativeObject from, SaveCall call)
        {
            var error = Call.Error();
            UIntPtr size;
            using (Use it = from.Use())
            {
                Call.Check(call(it, null, UIntPtr.Zero, &size, &error), &error, from.Hooks);
                var bytes = new byte[checked((long)size)];
                fixed (byte* buffer = bytes) Call.Check(call(it, buffer, size, &size, &error), &error, from.Hooks);
                return bytes;
            }
        }

        internal static void Load(NativeObject from, byte[] file, string argument, Handle made, LoadCall call)
        {
            if (from == null) throw new ArgumentNullException("context");
            var error = Call.Error();
            byte[] bytes = NotEmpty(file, argument);
            IntPtr result;
            using (Use it = from.Use())
            fixed (byte* buffer = bytes)
                Call.Check(call(it, buffer, (UIntPtr)file.Length, &result, &error), &error, from.Hooks, made,
                           result);
        }

        /// Not NULL where a file is empty: that is for the library to refuse.
        internal static byte[] NotEmpty(byte[] file, string argument)
        {
            if (file == null) throw new ArgumentNullException(argument);
            return file.Length == 0 ? new byte[1] : file;
        }
    }
}
