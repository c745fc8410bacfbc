using System;
#if NET8_0_OR_GREATER
using System.Reflection;
using System.Runtime.InteropServices;
#endif
using Kvq.Raw;

namespace Kvq
{
    /// <summary>The loaded libkvq: its version, and its features on this machine.</summary>
    public static unsafe class Library
    {
        static volatile bool known;

#if NET8_0_OR_GREATER
        /// <summary>Load libkvq from this file instead of the loader's search path. Call it first. On Mono, set
        /// LD_LIBRARY_PATH or write a dllmap instead.</summary>
        /// <param name="path">The file's path.</param>
        public static void LoadFrom(string path)
        {
            if (path == null) throw new ArgumentNullException(nameof(path));
            NativeLibrary.SetDllImportResolver(typeof(Native).Assembly, (name, assembly, search) =>
                name == Native.Library ? NativeLibrary.Load(path) : IntPtr.Zero);
        }
#endif

        /// <summary>See <see cref="Native.kvq_api_version"/>.</summary>
        public static int ApiVersion => Native.kvq_api_version();

        /// <summary>Version of the loaded library, "major.minor.patch".</summary>
        public static string Version => Text.Read(Native.kvq_version_string());

        /// <summary>Instruction sets that contexts can be created for on this machine, best first.</summary>
        /// <returns>Their names.</returns>
        public static string[] CpuIsas()
        {
            Require();
            var names = new string[Native.kvq_cpu_isa_count()];
            for (int i = 0; i < names.Length; ++i) names[i] = Text.Read(Native.kvq_cpu_isa_name(i));
            return names;
        }

        /// <summary>Schemes that <see cref="QuantizeOptions.Scheme"/> can name.</summary>
        /// <returns>Their names; see <see cref="Native.qp_scheme_name"/>.</returns>
        public static string[] Schemes()
        {
            Require();
            var names = new string[Native.qp_scheme_count()];
            for (int i = 0; i < names.Length; ++i) names[i] = Text.Read(Native.qp_scheme_name(i));
            return names;
        }

        /// <summary>See <see cref="Native.qp_scheme_bits"/>.</summary>
        /// <param name="scheme">A name.</param>
        /// <returns>Bits per weight; 0 if there is no scheme of that name.</returns>
        public static double SchemeBits(string scheme)
        {
            Require();
            fixed (byte* name = Text.Needed(scheme, nameof(scheme))) return Native.qp_scheme_bits(name);
        }

        /// <summary>Name of a status, for example "KVQ_E_LIMIT".</summary>
        /// <param name="status">A status.</param>
        /// <returns>The name; "unknown status" for any other number.</returns>
        public static string StatusName(Status status) => Text.Read(Native.kvq_status_name(status));

        /// <summary>See <see cref="Native.kvq_device_describe"/>.</summary>
        /// <param name="device"><see cref="Device.Cuda"/>.</param>
        /// <param name="index">As <see cref="ContextOptions.DeviceIndex"/>.</param>
        /// <param name="plugin">As <see cref="ContextOptions.Plugin"/>.</param>
        /// <returns>The device; if contexts cannot be created on it, a <see cref="KvqException"/> gives the
        /// reason.</returns>
        public static DeviceInfo DescribeDevice(Device device, int index = 0, string plugin = null)
        {
            Require();
            var error = Call.Error();
            var info = new kvq_device_info { struct_size = (uint)sizeof(kvq_device_info) };
            fixed (byte* path = Text.Bytes(plugin, nameof(plugin)))
                Call.Check(Native.kvq_device_describe(device, index, path, &info, &error), &error, null);
            return new DeviceInfo(&info);
        }

        /// Throws if the library is older than the header that the raw layer was generated from.
        internal static void Require()
        {
            if (known) return;
            int found = Native.kvq_api_version();
            if (found < Constants.ApiVersion) throw new LibraryVersionException(found, Version);
            known = true;
        }
    }
}
