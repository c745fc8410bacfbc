using System;
using Kvq.Raw;

namespace Kvq
{
    /// <remarks>Hooks are called from any thread, also from several at once. A hook, or a thread or task that it
    /// started, gets an <see cref="InvalidOperationException"/> if it uses the context or objects made from it. An
    /// exception in a hook counts as its failure and is thrown again by the call that ran the hook. If the hook ran on
    /// a thread of the library, or while a finalizer destroyed an object, the next call on the context, or on an object
    /// made from it, throws it.</remarks>
    public sealed partial class ContextOptions
    {
        /// <summary>Allocate bytes with an alignment, or return <see cref="IntPtr.Zero"/>; null (default): the
        /// library's allocator. See <see cref="kvq_allocate_hook"/>.</summary>
        public Func<long, long, IntPtr> Allocate { get; set; }

        /// <summary>Free memory from <see cref="Allocate"/> with the same bytes and alignment. See
        /// <see cref="kvq_free_hook"/>.</summary>
        public Action<IntPtr, long, long> Free { get; set; }

        /// <summary>Receive one message; null (default): no messages.</summary>
        public Action<LogLevel, string> Log { get; set; }

        /// <summary>Run the body once for each index below the first argument, on any threads, and return when all
        /// calls have returned; null (default): the library's own threads. See
        /// <see cref="kvq_parallel_for_hook"/>.</summary>
        public Action<int, Action<int>> ParallelFor { get; set; }

        /// <summary>Called when the context and all objects made from it are freed.</summary>
        public Action Released { get; set; }

        /// <summary>Allocate bytes of device memory on a stream; see
        /// <see cref="kvq_device_allocate_hook"/>.</summary>
        public Func<long, IntPtr, IntPtr> DeviceAllocate { get; set; }

        /// <summary>Free bytes of device memory on a stream; see <see cref="kvq_device_free_hook"/>.</summary>
        public Action<IntPtr, long, IntPtr> DeviceFree { get; set; }

        internal ContextOptions Copy() => (ContextOptions)MemberwiseClone();
    }

    /// <summary>Memory, threads, limits and a device, shared by any number of caches.</summary>
    public sealed unsafe partial class Context : NativeObject
    {
        /// <summary>See <see cref="Native.kvq_context_create"/>.</summary>
        /// <param name="options">Null: defaults.</param>
        public Context(ContextOptions options = null) : this(options ?? new ContextOptions(), new ContextHandle()) { }

        Context(ContextOptions options, ContextHandle handle) : base(handle, Create(options, handle)) =>
            Device = options.Device;

        static Hooks Create(ContextOptions options, ContextHandle handle)
        {
            Library.Require();
            var error = Call.Error();
            kvq_context_options raw = options.raw;
            IntPtr result;
            fixed (byte* isa = Text.Bytes(options.CpuIsa, "CpuIsa"))
            fixed (byte* plugin = Text.Bytes(options.Plugin, "Plugin"))
            {
                raw.cpu_isa = isa;
                raw.plugin = plugin;
                Hooks hooks = Hooks.Of(options, &raw);
                Call.Begin();
                Status status = Native.kvq_context_create(&raw, &result, &error);
                Call.End();
                if (status != Status.Ok) hooks.Free();
                Call.Check(status, &error, hooks, handle, result);
                return hooks;
            }
        }

        /// <summary>Device of the context.</summary>
        public Device Device { get; }

        /// <summary>See <see cref="Native.kvq_context_set_stream"/>. No other thread may be inside a call on an object
        /// made from the context.</summary>
        /// <param name="stream">cudaStream_t; zero: the legacy default stream.</param>
        public void SetStream(IntPtr stream)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
                Call.Check(Native.kvq_context_set_stream(it, stream, &error), &error, Hooks);
        }

        /// <summary>See <see cref="Native.kvq_file_type"/>.</summary>
        /// <param name="file">The bytes of the file.</param>
        /// <returns>What it holds, <see cref="FileKind.Unknown"/> too.</returns>
        public FileKind FileType(byte[] file)
        {
            var error = Call.Error();
            byte[] bytes = Files.NotEmpty(file, nameof(file));
            FileKind kind;
            using (Use it = Use())
            fixed (byte* data = bytes)
                Call.Check(Native.kvq_file_type(it, data, (UIntPtr)file.Length, &kind, &error), &error, Hooks);
            return kind;
        }
    }
}
