using System;

namespace Kvq.Tests
{
    /// A small model.
    sealed class Model : IDisposable
    {
        internal const int Layers = 2, QHeads = 4, KvHeads = 2, HeadDim = 16;
        internal const int Row = KvHeads * HeadDim, QueryRow = QHeads * HeadDim;

        internal readonly Context Context;
        internal readonly Cache Cache;
        internal readonly Sequence Sequence;

        internal Model(string policy = "fp16", Rope rope = Rope.None, ContextOptions options = null)
        {
            Context = new Context(options);
            using (Policy read = Policy.Load(Context, policy)) Cache = new Cache(Context, Shape(rope), read);
            Sequence = new Sequence(Cache);
        }

        internal static CacheOptions Shape(Rope rope) =>
            new CacheOptions { NLayers = Layers, QHeads = QHeads, KvHeads = KvHeads, HeadDim = HeadDim, Rope = rope };

        public void Dispose()
        {
            Sequence.Dispose();
            Cache.Dispose();
            Context.Dispose();
        }

        /// Multiples of 1/512 in [-1, 1): FP16 holds them exactly.
        internal static float[] Numbers(int n, uint seed)
        {
            var x = new float[n];
            for (int i = 0; i < n; ++i)
            {
                seed = seed * 1664525u + 1013904223u;
                x[i] = (int)(seed >> 22) / 512.0f - 1;
            }
            return x;
        }

        /// The same tokens in both layers, and what they were.
        internal (float[] k, float[] v) Fill(Sequence sequence, int tokens, uint seed)
        {
            float[] k = Numbers(tokens * Row, seed), v = Numbers(tokens * Row, seed + 1);
            for (int layer = 0; layer < Layers; ++layer) sequence.Append(layer, k, v);
            return (k, v);
        }

        /// What a head holds, decoded.
        internal static float[][] Decoded(Sequence sequence, int layer, int kvHead)
        {
            int slots = sequence.Slots(layer, kvHead);
            float[] k = new float[slots * HeadDim], v = new float[slots * HeadDim];
            sequence.Decode(layer, kvHead, 0, slots, k, v);
            return new[] { k, v };
        }

        /// One head of [tokens, KvHeads, HeadDim].
        internal static float[] Head(float[] x, int kvHead)
        {
            var head = new float[x.Length / KvHeads];
            for (int i = 0; i < head.Length; ++i)
                head[i] = x[(i / HeadDim * KvHeads + kvHead) * HeadDim + i % HeadDim];
            return head;
        }
    }
}
