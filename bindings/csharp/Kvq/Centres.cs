using Kvq.Raw;

namespace Kvq
{
    /// <summary>Scales of one layer's channels, [kv_heads, head_dim]; null where centres have none of that side.
    /// </summary>
    public sealed class LayerScales
    {
        internal LayerScales(float[] keyScales, float[] valueScales, float[] valueOffsets)
        {
            KeyScales = keyScales;
            ValueScales = valueScales;
            ValueOffsets = valueOffsets;
        }

        /// <summary>Of keys; both channels of a RoPE pair have the same.</summary>
        public float[] KeyScales { get; }

        /// <summary>Of values.</summary>
        public float[] ValueScales { get; }

        /// <summary>What is subtracted from values before scaling.</summary>
        public float[] ValueOffsets { get; }
    }

    public sealed unsafe partial class Centres
    {
        /// <summary>Read the scales of one layer, for example to fold them into weights. Scales are in (0, 1]: only
        /// their ratios within a head mean anything. See <see cref="Native.kvq_centres_read_scales"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>The scales.</returns>
        public LayerScales ReadScales(int layer)
        {
            CentresInfo info = Describe();
            int channels = info.KvHeads * info.HeadDim;
            float[] keys = info.KeyScales != 0 ? new float[channels] : null;
            float[] values = info.ValueScales != 0 ? new float[channels] : null;
            float[] offsets = info.ValueScales != 0 ? new float[channels] : null;
            var error = Call.Error();
            using (Use it = Use())
            fixed (float* k = keys, v = values, o = offsets)
                Call.Check(Native.kvq_centres_read_scales(it, layer, k, v, o, &error), &error, Hooks);
            return new LayerScales(keys, values, offsets);
        }
    }
}
