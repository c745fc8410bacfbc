// Minimal embedding: one attention layer of an engine decodes on a cache compressed to about five bits per scalar.
// The same program as samples/c/embed.c; it prints the same line.
using System;
using System.Globalization;
using Kvq;

static class Embed
{
    const int Layers = 1, QHeads = 8, KvHeads = 2, HeadDim = 64, Tokens = 1000;

    static uint state = 1;

    /// Stands in for the engine's projections: numbers in [-1, 1).
    static void Fill(float[] x)
    {
        for (int i = 0; i < x.Length; ++i)
        {
            state = state * 1664525u + 1013904223u;
            x[i] = (state >> 8) / 8388608.0f - 1.0f;
        }
    }

    /// Hash of the attention outputs' bits, to compare with the same program in another language.
    static uint Checksum(uint sum, float[] x)
    {
        var bits = new uint[x.Length];
        Buffer.BlockCopy(x, 0, bits, 0, 4 * x.Length);
        foreach (uint one in bits) sum = (sum ^ one) * 16777619u;
        return sum;
    }

    static int Main()
    {
        var options = new CacheOptions { NLayers = Layers, QHeads = QHeads, KvHeads = KvHeads, HeadDim = HeadDim };
        float[] q = new float[QHeads * HeadDim], output = new float[QHeads * HeadDim];
        float[] k = new float[KvHeads * HeadDim], v = new float[KvHeads * HeadDim];
        uint sum = 2166136261u;
        using (var context = new Context())
        using (Policy policy = Policy.Load(context, "int4+hadamard"))
        using (var cache = new Cache(context, options, policy))
        using (var sequence = new Sequence(cache))
        {
            for (int token = 0; token < Tokens; ++token)
            {
                Fill(q); // before RoPE: the library rotates queries and keys
                Fill(k);
                Fill(v);
                sequence.Append(0, k, v);
                cache.Attend(0, sequence, q, output);
                sum = Checksum(sum, output);
            }
            Usage usage = sequence.Usage();
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture,
                "{0} tokens at {1:F2} bits per scalar: {2} bytes instead of {3}, checksum {4:x8}", Tokens,
                usage.BitsPerScalar, usage.TotalBytes, usage.PlainFp16Bytes, sum));
        }
        return 0;
    }
}
