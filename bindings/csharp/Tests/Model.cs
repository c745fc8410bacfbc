using System;

namespace Kvq.Tests
{
    /// A small model, and what its attention gives in float64.
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

        /// softmax(q·k / sqrt(HeadDim)) v of the first `seen` tokens of one head, with a cap and a sink; also
        /// the logarithm of the sum of exp.
        internal static double[] Attention(float[] q, int queryAt, float[] k, float[] v, int from, int seen,
            out double lse, double cap = 0, double sink = double.NegativeInfinity)
        {
            var logits = new double[seen];
            double largest = sink;
            for (int t = from; t < seen; ++t)
            {
                double dot = 0;
                for (int c = 0; c < HeadDim; ++c) dot += (double)q[queryAt + c] * k[t * HeadDim + c];
                logits[t] = dot / Math.Sqrt(HeadDim);
                if (cap > 0) logits[t] = cap * Math.Tanh(logits[t] / cap);
                largest = Math.Max(largest, logits[t]);
            }
            double sum = Math.Exp(sink - largest);
            var output = new double[HeadDim];
            for (int t = from; t < seen; ++t)
            {
                double weight = Math.Exp(logits[t] - largest);
                sum += weight;
                for (int c = 0; c < HeadDim; ++c) output[c] += weight * v[t * HeadDim + c];
            }
            for (int c = 0; c < HeadDim; ++c) output[c] /= sum;
            lse = largest + Math.Log(sum);
            return output;
        }

        /// A query of all heads at token `seen` - 1, against dense keys and values as they were appended.
        internal static void Expect(float[] output, int row, float[] q, float[] k, float[] v, int seen, string what,
                                    double tolerance = 2e-6)
        {
            for (int h = 0; h < QHeads; ++h)
            {
                int kvHead = h / (QHeads / KvHeads), at = row * QueryRow + h * HeadDim;
                double lse;
                double[] expected = Attention(q, at, Head(k, kvHead), Head(v, kvHead), 0, seen, out lse);
                for (int c = 0; c < HeadDim; ++c)
                    Test.Near(expected[c], output[at + c], tolerance, what + " of head " + h + ", channel " + c);
            }
        }
    }
}
