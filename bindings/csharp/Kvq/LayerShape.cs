using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq
{
    public sealed partial class LayerShape
    {
        /// Checks the frequencies and returns their number; the name is that of the shape, for messages.
        internal int Check(CacheOptions options, string name)
        {
            if (InvFreq == null) return 0;
            int rotated = RotaryDim != 0 ? RotaryDim : options.RotaryDim;
            int begin = RotaryBegin;
            if (begin == 0 && ValuesAreKeyPrefix) begin = ValueDim != 0 ? ValueDim : options.HeadDim;
            if (rotated == 0) rotated = (KeyDim != 0 ? KeyDim : options.HeadDim) - begin;
            // The library refuses negative numbers.
            Shape.Exactly(InvFreq, Math.Max(rotated, 0) / 2, name + ".InvFreq", "[rotated channels / 2]");
            return InvFreq.Length;
        }
    }

    /// The layers of a cache that differ, as the library takes them: structs, and the frequencies that they point to.
    sealed unsafe class RawShapes
    {
        readonly List<int> counts = new List<int>();

        internal RawShapes(CacheOptions options)
        {
            LayerShape[] shapes = options.Shapes ?? new LayerShape[0];
            var frequencies = new List<float>();
            Structs = new kvq_layer_shape[shapes.Length];
            for (int i = 0; i < Structs.Length; ++i)
            {
                string name = nameof(options.Shapes) + "[" + i + "]";
                LayerShape one = shapes[i] ?? throw new ArgumentException(name + " is null", nameof(options.Shapes));
                counts.Add(one.Check(options, name));
                if (one.InvFreq != null) frequencies.AddRange(one.InvFreq);
                Structs[i] = one.raw;
            }
            Frequencies = frequencies.ToArray();
        }

        internal kvq_layer_shape[] Structs { get; }

        internal float[] Frequencies { get; }

        /// Sets the shapes of raw options, valid while the structs and the frequencies are pinned at these addresses.
        internal void Set(ref kvq_cache_options options, kvq_layer_shape* structs, float* frequencies)
        {
            options.shapes = structs;
            options.n_shapes = counts.Count;
            for (int i = 0; i < counts.Count; frequencies += counts[i++])
                if (counts[i] > 0) structs[i].inv_freq = frequencies;
        }
    }
}
