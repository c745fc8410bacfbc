using System;
using Kvq.Raw;

namespace Kvq
{
    /// <remarks>Hooks are called from any thread, may come several at once, and may not use the context or what was
    /// made from it. What a hook throws ends in that hook's failure, and is thrown again by the next call on the
    /// context, or on an object made from it, that returns.</remarks>
    public sealed partial class ContextOptions
    {
        /// <summary>Allocate so many bytes with this alignment, or return <see cref="IntPtr.Zero"/>; null (default):
        /// the library's own allocator. See <see cref="kvq_allocate_hook"/>.</summary>
        public Func<long, long, IntPtr> Allocate { get; set; }

        /// <summary>Free what <see cref="Allocate"/> returned, of these bytes and this alignment. See
        /// <see cref="kvq_free_hook"/>.</summary>
        public Action<IntPtr, long, long> Free { get; set; }

        /// <summary>Take one message; null (default): no messages.</summary>
        public Action<LogLevel, string> Log { get; set; }

        /// <summary>Run the body once for every number from 0 to below the first argument, on any threads, and return
        /// when all that began are done; null (default): the library's own threads. See
        /// <see cref="kvq_parallel_for_hook"/>.</summary>
        public Action<int, Action<int>> ParallelFor { get; set; }

        /// <summary>Told when the context and everything made from it is gone.</summary>
        public Action Released { get; set; }

        /// <summary>Allocate so many bytes of device memory on a stream; see
        /// <see cref="kvq_device_allocate_hook"/>.</summary>
        public Func<long, IntPtr, IntPtr> DeviceAllocate { get; set; }

        /// <summary>Free device memory of so many bytes on a stream; see <see cref="kvq_device_free_hook"/>.</summary>
        public Action<IntPtr, long, IntPtr> DeviceFree { get; set; }

        /// <summary>cudaStream_t that everything is issued to; see <see cref="Context.SetStream"/>.</summary>
        public IntPtr Stream
        {
            get => raw.stream;
            set => raw.stream = value;
        }

        internal ContextOptions Copy() => (ContextOptions)MemberwiseClone();
    }

    /// <summary>Memory, threads, limits and device shared by any number of caches.</summary>
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
                Status status = Native.kvq_context_create(&raw, &result, &error);
                if (status != Status.Ok && hooks != null) hooks.Free();
                Call.Check(status, &error, hooks, handle, result);
                return hooks;
            }
        }

        /// <summary>What it computes on.</summary>
        public Device Device { get; }

        /// <summary>See <see cref="Native.kvq_context_set_stream"/>. Calls on objects made from the context must not be
        /// under way on other threads.</summary>
        /// <param name="stream">cudaStream_t; zero: the legacy default stream.</param>
        public void SetStream(IntPtr stream)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
                Call.Check(Native.kvq_context_set_stream(it, stream, &error), &error, Hooks);
        }
    }
}
