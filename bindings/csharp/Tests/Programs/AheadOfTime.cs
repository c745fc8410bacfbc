using System;
using System.Runtime.InteropServices;
using System.Threading;
using Kvq;

/// Every hook of the CPU, for a run without a just-in-time compiler, as on consoles and phones.
static class AheadOfTime
{
    static void Main()
    {
        int allocations = 0, messages = 0, loops = 0, asked = 0;
        bool released = false;
        var options = new ContextOptions
        {
            Allocate = (bytes, alignment) =>
            {
                Interlocked.Increment(ref allocations);
                long start = (long)Marshal.AllocHGlobal((IntPtr)(bytes + alignment + 8));
                long aligned = (start + 8 + alignment - 1) / alignment * alignment;
                Marshal.WriteInt64((IntPtr)(aligned - 8), start);
                return (IntPtr)aligned;
            },
            Free = (pointer, bytes, alignment) =>
            {
                Interlocked.Decrement(ref allocations);
                Marshal.FreeHGlobal((IntPtr)Marshal.ReadInt64((IntPtr)((long)pointer - 8)));
            },
            Log = (level, message) => Interlocked.Increment(ref messages),
            ParallelFor = (n, body) =>
            {
                Interlocked.Increment(ref loops);
                for (int i = 0; i < n; ++i) body(i);
            },
            Released = () => released = true,
        };
        var shape = new CacheOptions { NLayers = 1, QHeads = 8, KvHeads = 2, HeadDim = 64 };
        using (var context = new Context(options))
        using (Policy policy = Policy.Load(context, "int4"))
        using (var cache = new Cache(context, shape, policy))
        using (var sequence = new Sequence(cache))
        {
            sequence.Append(0, new float[500 * 128], new float[500 * 128]);
            cache.Attend(0, sequence, new float[40 * 512], new float[40 * 512]);
            var progress = new QuantizeOptions
            {
                Progress = done =>
                {
                    ++asked;
                    return true;
                },
            };
            Matrix.Quantize(context, new float[64 * 64], 64, 64, progress).Dispose();
        }
        Console.WriteLine("{0} {1} {2} {3} {4}", allocations, messages > 0, loops > 0, asked > 0, released);
    }
}
