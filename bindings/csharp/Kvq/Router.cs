using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>Routers for the layers of one model (MoQAE). Immutable; caches share it.</summary>
    public sealed unsafe class Router : NativeObject
    {
        internal Router(RouterHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_router_load"/>.</summary>
        /// <param name="context">Context that allocates its memory.</param>
        /// <param name="file">Bytes of a file from <see cref="Save"/>.</param>
        /// <returns>The routers.</returns>
        public static Router Load(Context context, byte[] file)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            var handle = new RouterHandle();
            Files.Load(context, file, nameof(file), handle, (it, buffer, size, result, error) =>
                       Native.kvq_router_load(it, buffer, size, result, error));
            return new Router(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_router_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save()
        {
            IntPtr it = Enter();
            try
            {
                return Files.Save((buffer, capacity, size, error) =>
                                  Native.kvq_router_save(it, buffer, capacity, size, error), Hooks);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_router_describe"/>.</summary>
        /// <returns>Shape of the routers and their training results.</returns>
        public RouterInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_router_info { struct_size = (uint)sizeof(kvq_router_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_router_describe(it, &info, &error), &error, Hooks);
                return new RouterInfo(&info);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_router_describe_group"/>.</summary>
        /// <param name="group">The group.</param>
        /// <returns>The description of the group.</returns>
        public RouterGroupInfo DescribeGroup(int group)
        {
            var error = Call.Error();
            var info = new kvq_router_group_info { struct_size = (uint)sizeof(kvq_router_group_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_router_describe_group(it, group, &info, &error), &error, Hooks);
                return new RouterGroupInfo(&info);
            }
            finally
            {
                Leave();
            }
        }
    }
}
