using System;

namespace Kvq.Tests
{
    static class CostTests
    {
        /// The smallest object takes 16 bytes, and Mono collects after 4 MiB of them at the latest.
        const int Calls = 400000;

        static void AllocatesNothing(string what, Action call)
        {
            call();
            GC.Collect();
            int before = GC.CollectionCount(0);
            for (int i = 0; i < Calls; ++i) call();
            Test.Equal(before, GC.CollectionCount(0), "collections of garbage during " + what);
        }

        public static void Calls_of_a_decoding_loop_allocate_nothing()
        {
            var shape = new CacheOptions { NLayers = 1, QHeads = 1, KvHeads = 1, HeadDim = 8 };
            using (var context = new Context())
            using (var cache = new Cache(context, shape))
            using (var sequence = new Sequence(cache))
            {
                float[] row = new float[8], output = new float[8];
                var append = new AppendBatch { Sequences = new[] { sequence }, K = row, V = row };
                var attend = new AttendBatch { Sequences = new[] { sequence }, Q = row, Output = output };
                AllocatesNothing("Append", () =>
                {
                    if (sequence.Length(0) == 32) sequence.Truncate(0);
                    sequence.Append(0, row, row);
                });
                AllocatesNothing("Append of a batch", () =>
                {
                    if (sequence.Length(0) == 32) sequence.Truncate(0);
                    cache.Append(0, append);
                });
                AllocatesNothing("Attend", () => cache.Attend(0, sequence, row, output));
                AllocatesNothing("Attend of a batch", () => cache.Attend(0, attend));
            }
        }
    }
}
