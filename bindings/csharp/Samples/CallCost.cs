// Measures the cost of a call on the smallest cache: one token appended, and one query over 32 tokens.
using System;
using System.Diagnostics;
using System.Globalization;
using Kvq;

static class CallCost
{
    const int Block = 32, Blocks = 2000, WarmUp = 200;

    static double Median(Action prepare, Action call)
    {
        var nanoseconds = new double[Blocks];
        for (int block = -WarmUp; block < Blocks; ++block)
        {
            prepare();
            long begin = Stopwatch.GetTimestamp();
            for (int i = 0; i < Block; ++i) call();
            long ticks = Stopwatch.GetTimestamp() - begin;
            if (block >= 0) nanoseconds[block] = ticks * 1e9 / Stopwatch.Frequency / Block;
        }
        Array.Sort(nanoseconds);
        return (nanoseconds[Blocks / 2 - 1] + nanoseconds[Blocks / 2]) / 2;
    }

    static int Main()
    {
        float[] q = new float[8], k = new float[8], v = new float[8], output = new float[8];
        for (int i = 0; i < 8; ++i)
        {
            q[i] = 0.25f * i - 1;
            k[i] = 1 - 0.125f * i;
            v[i] = 0.5f * i;
        }
        using (var context = new Context())
        using (Policy policy = Policy.Load(context, "fp16"))
        using (var cache = new Cache(context, new CacheOptions { NLayers = 1, QHeads = 1, KvHeads = 1, HeadDim = 8 },
            policy))
        using (var sequence = new Sequence(cache))
        {
            double append = Median(() => sequence.Truncate(0), () => sequence.Append(0, k, v));
            double attend = Median(() => { }, () => cache.Attend(0, sequence, q, output));
            Console.WriteLine(string.Format(CultureInfo.InvariantCulture, "append {0:F0} attend {1:F0}", append,
                attend));
        }
        return 0;
    }
}
