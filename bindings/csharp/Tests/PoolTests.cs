using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Kvq.Tests
{
    /// Pools: the results of a cache in memory of the program, blocks that move, and sizes that are refused.
    static class PoolTests
    {
        const int Layers = 2, Row = 2 * 32, QueryRow = 4 * 32;

        static Cache NewCache(Context context)
        {
            var shape = new CacheOptions { NLayers = Layers, QHeads = 4, KvHeads = 2, HeadDim = 32 };
            using (Policy policy = Policy.Load(context,
                "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}"))
                return new Cache(context, shape, policy);
        }

        /// A program's side of a pool of 16 blocks and 3 tails.
        sealed class Engine : IDisposable
        {
            internal readonly Pool Pool;
            internal readonly PoolPlan Plan;
            readonly List<IntPtr> memory = new List<IntPtr>();

            internal Engine(Cache cache, int ranges = 1)
            {
                Pool = new Pool(cache, Options(cache, ranges));
                Plan = new PoolPlan(Pool, 3, 200, 8);
            }

            internal PoolOptions Options(Cache cache, int ranges)
            {
                BlockLayout layout = cache.BlockLayout(0, 32);
                var options = new PoolOptions { BlockTokens = 32, NRanges = ranges, NTails = 3,
                    Ranges = new BlockRange[Layers * ranges], Tails = new IntPtr[Layers] };
                for (int i = 0; i < options.Ranges.Length; ++i)
                {
                    var one = new BlockRange { NBlocks = 16 / ranges, Stride = layout.BlockBytes + 64 };
                    one.Data = Aligned(one.NBlocks * one.Stride);
                    options.Ranges[i] = one;
                }
                for (int layer = 0; layer < Layers; ++layer) options.Tails[layer] = Aligned(3 * layout.TailBytes);
                return options;
            }

            IntPtr Aligned(long bytes)
            {
                IntPtr all = Marshal.AllocHGlobal(new IntPtr(bytes + 64));
                memory.Add(all);
                return new IntPtr((all.ToInt64() + 63) & ~63L);
            }

            /// Plans tokens of sequences of up to five blocks each.
            internal void Batch(int[] counts, params int[] lengths)
            {
                int n = counts.Length;
                int[] starts = new int[n + 1], table = new int[5 * n], tails = new int[n];
                for (int i = 0; i < n; ++i)
                {
                    starts[i + 1] = starts[i] + counts[i];
                    for (int block = 0; block < 5; ++block) table[5 * i + block] = block * n + i;
                    tails[i] = n - 1 - i;
                }
                Plan.Batch(new PoolBatch { QueryStarts = starts, Lengths = lengths, BlockTable = table, TableStride = 5,
                    Tails = tails });
            }

            public void Dispose()
            {
                Pool.Dispose();
                Plan.Dispose();
                foreach (IntPtr one in memory) Marshal.FreeHGlobal(one);
            }
        }

        static PoolCall Tokens(int n, uint seed) =>
            new PoolCall { K = Model.Numbers(n * Row, seed), V = Model.Numbers(n * Row, seed + 1) };

        static PoolCall All(int n, uint seed, float[] output)
        {
            PoolCall call = Tokens(n, seed);
            call.Q = Model.Numbers(n * QueryRow, seed + 2);
            call.Output = output;
            return call;
        }

        static void Results(int ranges)
        {
            using (var context = new Context())
            using (Cache cache = NewCache(context))
            using (var engine = new Engine(cache, ranges))
            {
                var sequences = new Sequence[3];
                for (int i = 0; i < 3; ++i) sequences[i] = new Sequence(cache);
                var lengths = new int[3];
                uint seed = 1;
                foreach (int[] counts in new[] { new[] { 40, 3, 70 }, new[] { 1, 1, 1 }, new[] { 20, 30, 2 },
                    new[] { 1, 1, 1 } })
                {
                    int n = 0;
                    for (int i = 0; i < 3; ++i)
                    {
                        lengths[i] += counts[i];
                        n += counts[i];
                    }
                    engine.Batch(counts, lengths);
                    for (int layer = 0; layer < Layers; ++layer, seed += 3)
                    {
                        float[] output = new float[n * QueryRow], expected = new float[n * QueryRow];
                        PoolCall call = All(n, seed, output);
                        call.Lse = new float[n * 4];
                        call.Lse[0] = float.NaN;
                        engine.Plan.Extend(layer, call);
                        cache.Extend(layer, new ExtendBatch { Sequences = sequences, TokenCounts = counts, K = call.K,
                            V = call.V, Q = call.Q, Output = expected });
                        Test.Same(expected, output, "output");
                        Test.True(!float.IsNaN(call.Lse[0]), "the log-sum-exp is written");
                    }
                }
                Test.True(engine.Plan.Bytes() > 0, "a plan has memory");
                foreach (Sequence one in sequences) one.Dispose();
            }
        }

        public static void Results_are_those_of_the_cache() => Results(1);

        public static void Results_are_the_same_in_several_ranges() => Results(4);

        public static void A_block_goes_to_another_pool()
        {
            using (var context = new Context())
            using (Cache cache = NewCache(context))
            using (Engine one = new Engine(cache), other = new Engine(cache))
            {
                one.Batch(new[] { 64 }, 64);
                one.Plan.Append(0, Tokens(64, 1));
                for (int block = 0; block < 2; ++block) other.Pool.WriteBlock(0, block, one.Pool.ReadBlock(0, block));
                float[] expected = new float[QueryRow], found = new float[QueryRow];
                foreach (Engine engine in new[] { one, other })
                {
                    engine.Batch(new[] { 1 }, 65);
                    engine.Plan.Append(0, Tokens(1, 3));
                    engine.Plan.Attend(0, new PoolCall { Q = Model.Numbers(QueryRow, 5),
                        Output = engine == one ? expected : found });
                }
                Test.Same(expected, found, "output");
                byte[] bytes = one.Pool.ReadBlock(0, 0);
                Test.Equal(cache.BlockLayout(0, 32).BlockBytes, bytes.LongLength, "bytes");
                for (int i = 0; i < bytes.Length; ++i) bytes[i] = 0x7c;
                Test.Refused(Status.Format, "no encoder writes", () => one.Pool.WriteBlock(0, 0, bytes));
                Test.Refused(Status.Argument, "size", () => one.Pool.WriteBlock(0, 0, new byte[0]));
                Test.Wrong("data", () => one.Pool.WriteBlock(0, 0, null));
            }
        }

        public static void Sizes_are_checked()
        {
            using (var context = new Context())
            using (Cache cache = NewCache(context))
            using (var it = new Engine(cache))
            {
                PoolPlan plan = it.Plan;
                PoolCall call = All(5, 1, new float[5 * QueryRow]);
                Test.Throws<InvalidOperationException>("no batch", () => plan.Extend(0, call));
                Test.Wrong("QueryStarts has 2 elements; [sequences + 1] takes 3", () => it.Batch(new[] { 5 }, 5, 5));
                Test.Refused(Status.Argument, "lengths[0] is 4", () => it.Batch(new[] { 5 }, 4));
                var batch = new PoolBatch { QueryStarts = new[] { 0, 5 }, Lengths = new[] { 5 } };
                Test.Wrong("BlockTable", () => plan.Batch(batch));
                batch.BlockTable = new[] { 0 };
                Test.Wrong("BlockTable has 1 elements; [sequences, TableStride] takes 8", () => plan.Batch(batch));
                Test.Throws<InvalidOperationException>("on the CPU", () => plan.BatchDevice(new DevicePoolBatch()));

                it.Batch(new[] { 5 }, 5);
                PoolCall few = All(5, 1, new float[5 * QueryRow]);
                few.Q = Model.Numbers(4 * QueryRow, 3);
                Test.Wrong("Q has 512 elements; 5 rows", () => plan.Extend(0, few));
                Test.Wrong("Q or Output is given", () => plan.Append(0, call));
                Test.Wrong("K or V is given", () => plan.Attend(0, call));
                Test.Refused(Status.Argument, "layer is 2", () => plan.Extend(2, call));
                Test.Throws<InvalidOperationException>("on the CPU", () => plan.ExtendDevice(0, new DevicePoolCall()));
                plan.Extend(0, call);

                PoolOptions options = it.Options(cache, 1);
                options.NRanges = 2;
                Test.Wrong("Ranges has 2 elements; [n_layers, NRanges] takes 4", () => new Pool(cache, options));
                options.NRanges = 1;
                options.Tails = new IntPtr[1];
                Test.Wrong("Tails has 1 elements", () => new Pool(cache, options));
                options.Tails = null;
                Test.Refused(Status.Argument, "options->tails", () => new Pool(cache, options));
                options.Ranges[1] = null;
                Test.Wrong("Ranges[1]", () => new Pool(cache, options));
                Test.Refused(Status.Argument, "block_tokens is 33", () => cache.BlockLayout(0, 33));
            }
        }

        public static void A_plan_outlives_its_pool()
        {
            using (var context = new Context())
            using (Cache cache = NewCache(context))
            using (var it = new Engine(cache))
            {
                PoolCall call = All(5, 1, new float[5 * QueryRow]);
                it.Batch(new[] { 5 }, 5);
                it.Pool.Dispose();
                it.Plan.Extend(0, call);
                Test.Throws<ObjectDisposedException>("Pool", () => it.Pool.ReadBlock(0, 0));
                Test.Throws<ObjectDisposedException>("Pool", () => new PoolPlan(it.Pool, 1, 1, 1));
                it.Plan.Dispose();
                Test.Throws<ObjectDisposedException>("PoolPlan", () => it.Plan.Extend(0, call));
                Test.Throws<ObjectDisposedException>("PoolPlan", () => it.Plan.Bytes());
                Test.Throws<ObjectDisposedException>("PoolPlan", () => it.Batch(new[] { 5 }, 5));
            }
        }
    }
}
