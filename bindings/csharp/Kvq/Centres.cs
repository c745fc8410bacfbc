using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>What keys and values of one model are stored relative to. Immutable; caches that use them share
    /// them.</summary>
    public sealed unsafe class Centres : NativeObject
    {
        internal Centres(CentresHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_centres_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="file">Bytes of a file, as <see cref="Save"/> writes it.</param>
        /// <returns>The centres.</returns>
        public static Centres Load(Context context, byte[] file)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            var handle = new CentresHandle();
            Files.Load(context, file, nameof(file), handle, (it, buffer, size, result, error) =>
                       Native.kvq_centres_load(it, buffer, size, result, error));
            return new Centres(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_centres_save"/>.</summary>
        /// <returns>The bytes of a file.</returns>
        public byte[] Save()
        {
            IntPtr it = Enter();
            try
            {
                return Files.Save((buffer, capacity, size, error) =>
                                  Native.kvq_centres_save(it, buffer, capacity, size, error), Hooks);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_centres_describe"/>.</summary>
        /// <returns>What the centres are made for and how much they take away.</returns>
        public CentresInfo Describe()
        {
            var error = Call.Error();
            var info = new kvq_centres_info { struct_size = (uint)sizeof(kvq_centres_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_centres_describe(it, &info, &error), &error, Hooks);
                return new CentresInfo(&info);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="Native.kvq_centres_describe_layer"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>One layer of the centres.</returns>
        public CentresLayerInfo DescribeLayer(int layer)
        {
            var error = Call.Error();
            var info = new kvq_centres_layer_info { struct_size = (uint)sizeof(kvq_centres_layer_info) };
            IntPtr it = Enter();
            try
            {
                Call.Check(Native.kvq_centres_describe_layer(it, layer, &info, &error), &error, Hooks);
                return new CentresLayerInfo(&info);
            }
            finally
            {
                Leave();
            }
        }
    }
}
