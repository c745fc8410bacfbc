using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>Trained centres of the keys and values of one model, for the gain-shape formats. Immutable; caches
    /// share them.</summary>
    public sealed unsafe class Centres : NativeObject
    {
        internal Centres(CentresHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>See <see cref="Native.kvq_centres_load"/>.</summary>
        /// <param name="context">Context that allocates its memory.</param>
        /// <param name="file">Bytes of a file from <see cref="Save"/>.</param>
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
        /// <returns>Shape and quality of the centres.</returns>
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
        /// <returns>The description of the layer.</returns>
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
