using System;
using Kvq.Raw;

namespace Kvq
{
    /// Common code of all calls of the library.
    static unsafe class Call
    {
        /// Objects that calls of this thread use.
        [ThreadStatic] static int used;

        /// Whether this thread is in a call.
        internal static bool IsRunning => used > 0;

        internal static void Begin() => ++used;

        internal static void End() => --used;

        internal static kvq_error Error() => new kvq_error { struct_size = (uint)sizeof(kvq_error) };

        /// Throws a hook's exception rather than the resulting status.
        internal static void Check(Status status, kvq_error* error, Hooks hooks)
        {
            if (hooks != null) hooks.Rethrow(); // null: the call uses no context
            if (status != Status.Ok) throw new KvqException(status, error);
        }

        /// Like Check, for a call that creates a handle: destroys it before throwing.
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

        /// Makes a call that creates a handle from an object.
        internal static void Create(NativeObject from, Handle made, CreateCall call)
        {
            var error = Error();
            IntPtr result;
            using (Use it = from.Use()) Check(call(it, &result, &error), &error, from.Hooks, made, result);
        }
    }

    /// Runs a call that creates a handle from `it`.
    unsafe delegate Status CreateCall(IntPtr it, IntPtr* result, kvq_error* error);

    /// Runs a call that writes a file of `it`, after asking for its size.
    unsafe delegate Status SaveCall(IntPtr it, void* buffer, UIntPtr capacity, UIntPtr* size, kvq_error* error);

    /// Runs a call that creates a handle from `it` and a file.
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
            byte[] bytes = NotEmpty(file, argument);
            Call.Create(from, made, (it, result, error) =>
            {
                fixed (byte* buffer = bytes) return call(it, buffer, (UIntPtr)file.Length, result, error);
            });
        }

        /// Not NULL for an empty file, so that the library refuses it.
        internal static byte[] NotEmpty(byte[] file, string argument)
        {
            if (file == null) throw new ArgumentNullException(argument);
            return file.Length == 0 ? new byte[1] : file;
        }
    }
}
