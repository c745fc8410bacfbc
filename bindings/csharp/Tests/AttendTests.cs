using System;

namespace Kvq.Tests
{
    /// Attention options reach the library, and results return to the right place.
    static class AttendTests
    {
        static float Value(int sequence, int position, int kvHead) => 100 * kvHead + 30 * sequence + position;

        /// Zero queries weigh all visible tokens equally, so outputs are means that identify them.
        public static void A_batch_takes_counts_positions_window_sinks_and_gives_lse()
        {
            using (var model = new Model())
            using (var other = new Sequence(model.Cache))
            {
                int[] positions = { 2, 3, 5, 7, 0, 1, 2, 3, 4, 5 };
                var v = new float[positions.Length * Model.Row];
                for (int i = 0; i < v.Length; ++i)
                    v[i] = Value(i / Model.Row < 4 ? 1 : 0, positions[i / Model.Row], i / Model.HeadDim % 2);
                var append = new AppendBatch
                {
                    Sequences = new[] { other, model.Sequence }, TokenCounts = new[] { 4, 6 }, Positions = positions,
                    K = new float[v.Length], V = v,
                };
                model.Cache.Append(0, append);
                var output = new float[3 * Model.QueryRow];
                var batch = new AttendBatch
                {
                    Sequences = append.Sequences, QueryCounts = new[] { 1, 2 }, QueryPositions = new[] { 6, 1, 5 },
                    Q = new float[output.Length], Output = output, Lse = new float[3 * Model.QHeads],
                    Sinks = new[] { 0.5f, -1, float.NegativeInfinity, 2 }, SlidingWindow = 3,
                };
                model.Cache.Attend(0, batch);
                int[][] seen = { new[] { 5 }, new[] { 0, 1 }, new[] { 3, 4, 5 } };
                for (int i = 0; i < 3 * Model.QHeads; ++i)
                {
                    int query = i / Model.QHeads, head = i % Model.QHeads;
                    double sum = Math.Exp(batch.Sinks[head]) + seen[query].Length, mean = 0;
                    foreach (int position in seen[query]) mean += Value(query == 0 ? 1 : 0, position, head / 2) / sum;
                    Test.Near(Math.Log(sum), batch.Lse[i], 1e-4, "lse " + i);
                    for (int c = 0; c < Model.HeadDim; ++c)
                        Test.Near(mean, output[i * Model.HeadDim + c], 1e-3 * mean, "query " + query);
                }
                var decoded = new int[4];
                other.Decode(0, 1, 0, 4, null, null, decoded);
                Test.Equal("2 3 5 7", string.Join(" ", decoded), "positions");
            }
        }

        /// First chunks, 40 tokens and 3: nothing is stored yet in the coarse format.
        public static void First_chunks_are_attended_to_as_given_and_stored_as_appended()
        {
            const int layer = 1, tokens = 43;
            int[] counts = { 40, 3 };
            float[] k = Model.Numbers(tokens * Model.Row, 1), v = Model.Numbers(tokens * Model.Row, 2),
                q = Model.Numbers(tokens * Model.QueryRow, 3), sinks = { 0.5f, -1, 0, 2 },
                expected = new float[q.Length], output = new float[q.Length],
                expectedLse = new float[tokens * Model.QHeads], lse = new float[expectedLse.Length];
            using (var exact = new Model())
            using (var other = new Sequence(exact.Cache))
            {
                Sequence[] both = { exact.Sequence, other };
                exact.Cache.Append(layer, new AppendBatch { Sequences = both, TokenCounts = counts, K = k, V = v });
                exact.Cache.Attend(layer, new AttendBatch
                {
                    Sequences = both, QueryCounts = counts, Q = q, Output = expected, SlidingWindow = 20,
                    LogitSoftcap = 3, Lse = expectedLse, Sinks = sinks,
                });
            }
            using (var coarse = new Model("int2"))
            using (Sequence extended = new Sequence(coarse.Cache), appended = new Sequence(coarse.Cache),
                shorter = new Sequence(coarse.Cache))
            {
                coarse.Cache.Extend(layer, new ExtendBatch
                {
                    Sequences = new[] { coarse.Sequence, extended }, TokenCounts = counts, K = k, V = v, Q = q,
                    Output = output, SlidingWindow = 20, LogitSoftcap = 3, Lse = lse, Sinks = sinks,
                });
                Test.Same(expected, output, "output");
                Test.Same(expectedLse, lse, "lse");
                coarse.Cache.Append(layer, new AppendBatch
                {
                    Sequences = new[] { appended, shorter }, TokenCounts = counts, K = k, V = v,
                });
                Test.Equal(Convert.ToBase64String(appended.Save()), Convert.ToBase64String(coarse.Sequence.Save()),
                    "40 tokens");
                Test.Equal(Convert.ToBase64String(shorter.Save()), Convert.ToBase64String(extended.Save()),
                    "3 tokens");
            }
        }

        /// Heads as M-RoPE turns them: pair j, channels j and j + 8, by the position of stream streams[j].
        static float[] Turned(float[] x, int heads, int[] places, int[] streams)
        {
            var turned = new float[x.Length];
            for (int i = 0; i < x.Length; i += Model.HeadDim)
                for (int j = 0; j < 8; ++j)
                {
                    int place = places[i / Model.HeadDim / heads * 3 + streams[j]];
                    double angle = place * Math.Pow(10000, -j / 8.0), cos = Math.Cos(angle), sin = Math.Sin(angle);
                    turned[i + j] = (float)(x[i + j] * cos - x[i + j + 8] * sin);
                    turned[i + j + 8] = (float)(x[i + j + 8] * cos + x[i + j] * sin);
                }
            return turned;
        }

        /// Appends 15 tokens, attends with the last 5 of them and extends by 5 more; places may be null.
        static float[] Outputs(CacheOptions options, float[] k, float[] v, float[] q, int[] places)
        {
            const int row = Model.Row, queryRow = Model.QueryRow;
            Func<int, int, int[]> part = (begin, tokens) =>
            {
                if (places == null) return null;
                var some = new int[3 * tokens];
                Array.Copy(places, 3 * begin, some, 0, some.Length);
                return some;
            };
            var output = new float[10 * queryRow];
            using (var context = new Context())
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                Sequence[] all = { sequence };
                cache.Append(0, new AppendBatch
                {
                    Sequences = all, TokenCounts = new[] { 15 }, K = Tensor.F32(k, 0, 15 * row),
                    V = Tensor.F32(v, 0, 15 * row), RopePositions = part(0, 15),
                });
                cache.Attend(0, new AttendBatch
                {
                    Sequences = all, QueryCounts = new[] { 5 }, Q = Tensor.F32(q, 10 * queryRow, 5 * queryRow),
                    Output = Tensor.F32(output, 0, 5 * queryRow), RopePositions = part(10, 5),
                });
                cache.Extend(0, new ExtendBatch
                {
                    Sequences = all, TokenCounts = new[] { 5 }, K = Tensor.F32(k, 15 * row, 5 * row),
                    V = Tensor.F32(v, 15 * row, 5 * row), Q = Tensor.F32(q, 15 * queryRow, 5 * queryRow),
                    Output = Tensor.F32(output, 5 * queryRow, 5 * queryRow), RopePositions = part(15, 5),
                });
            }
            return output;
        }

        public static void Pairs_turn_by_the_positions_of_their_section()
        {
            float[] k = Model.Numbers(20 * Model.Row, 1), v = Model.Numbers(20 * Model.Row, 2),
                q = Model.Numbers(20 * Model.QueryRow, 3);
            var places = new int[20 * 3];
            for (int i = 0; i < places.Length; ++i) places[i] = i * 37 % 101;
            foreach (bool interleaved in new[] { false, true })
            {
                CacheOptions options = Model.Shape(Rope.Half);
                options.MropeSection = interleaved ? new[] { 4, 2, 2 } : new[] { 2, 3, 3 };
                options.MropeInterleaved = interleaved;
                int[] streams = interleaved ? new[] { 0, 1, 2, 0, 1, 2, 0, 0 } : new[] { 0, 0, 1, 1, 1, 2, 2, 2 };
                float[] expected = Outputs(Model.Shape(Rope.None), Turned(k, Model.KvHeads, places, streams), v,
                    Turned(q, Model.QHeads, places, streams), null);
                float[] output = Outputs(options, k, v, q, places);
                for (int i = 0; i < output.Length; ++i) Test.Near(expected[i], output[i], 2e-3, "output " + i);
            }
        }

        public static void Sections_and_their_positions_are_checked()
        {
            CacheOptions options = Model.Shape(Rope.Half);
            options.MropeSection = new[] { 2, 3, 3 };
            using (var context = new Context())
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                float[] k = new float[Model.Row], q = new float[Model.QueryRow], output = new float[q.Length];
                var all = new[] { sequence };
                sequence.Append(0, k, k);
                Test.Wrong("RopePositions has 2 elements; [tokens, 3] takes 3", () => cache.Append(0,
                    new AppendBatch { Sequences = all, K = k, V = k, RopePositions = new int[2] }));
                Test.Wrong("RopePositions has 6 elements; [queries, 3] takes 3", () => cache.Attend(0,
                    new AttendBatch { Sequences = all, Q = q, Output = output, RopePositions = new int[6] }));
                Test.Wrong("RopePositions has 2 elements; [tokens, 3] takes 3", () => cache.Extend(0,
                    new ExtendBatch { Sequences = all, K = k, V = k, Q = q, Output = output,
                        RopePositions = new int[2] }));
                options.MropeSection = new[] { 4, 4 };
                Test.Wrong("MropeSection has 2 elements", () => new Cache(context, options));
                options.MropeSection = new[] { 2, 3, 2 };
                Test.Refused(Status.Argument, "mrope_section adds up to 7 pairs", () => new Cache(context, options));
            }
        }

        public static void Strides_reach_into_one_tensor_of_queries_keys_and_values()
        {
            const int tokens = 5, width = Model.QueryRow + 2 * Model.Row;
            using (var model = new Model())
            using (var dense = new Sequence(model.Cache))
            {
                float[] all = Model.Numbers(tokens * width, 8), k = new float[tokens * Model.Row],
                    v = new float[k.Length], q = new float[Model.QueryRow], expected = new float[q.Length];
                for (int t = 0; t < tokens; ++t)
                {
                    Array.Copy(all, t * width + Model.QueryRow, k, t * Model.Row, Model.Row);
                    Array.Copy(all, t * width + Model.QueryRow + Model.Row, v, t * Model.Row, Model.Row);
                }
                Array.Copy(all, (tokens - 1) * width, q, 0, q.Length);
                dense.Append(0, k, v);
                model.Cache.Attend(0, dense, q, expected);
                model.Cache.Append(0, new AppendBatch
                {
                    Sequences = new[] { model.Sequence }, TokenCounts = new[] { tokens },
                    K = Tensor.F32(all, Model.QueryRow, all.Length - Model.QueryRow),
                    V = Tensor.F32(all, Model.QueryRow + Model.Row, all.Length - Model.QueryRow - Model.Row),
                    KTokenStride = width, KHeadStride = Model.HeadDim, VTokenStride = width, VHeadStride = Model.HeadDim
                });
                // Heads of the output lie 32 apart, queries 256: what is between stays as it is.
                float[] spread = Array.ConvertAll(new float[2 * 256], it => 77f), output = new float[Model.QueryRow];
                model.Cache.Attend(0, new AttendBatch
                {
                    Sequences = new[] { model.Sequence }, QueryCounts = new[] { 2 },
                    Q = Tensor.F32(all, (tokens - 2) * width, 2 * width), QTokenStride = width,
                    QHeadStride = Model.HeadDim, Output = spread, OutputTokenStride = 256, OutputHeadStride = 32,
                });
                for (int h = 0; h < Model.QHeads; ++h)
                    Array.Copy(spread, 256 + h * 32, output, h * Model.HeadDim, Model.HeadDim);
                Test.Same(expected, output, "strided");
                Test.Equal(77f, spread[256 + Model.HeadDim], "what is between heads");
            }
        }

        public static void Half_precision_goes_in_and_comes_out()
        {
            using (var model = new Model())
            {
                // 1, -0.5, 0.25, 1.5 in both types
                ushort[] f16 = { 0x3c00, 0xb800, 0x3400, 0x3e00 }, bf16 = { 0x3f80, 0xbf00, 0x3e80, 0x3fc0 };
                Tensor k = Tensor.F16(Tiled(f16, Model.Row));
                model.Sequence.Append(0, k, k);
                var output = new ushort[Model.QueryRow];
                model.Cache.Attend(0, model.Sequence, new float[Model.QueryRow], Tensor.Bf16(output));
                Test.Equal(string.Join(" ", Tiled(bf16, output.Length)), string.Join(" ", output), "BF16 output");
                k = Tensor.Bf16(Tiled(bf16, Model.Row));
                model.Sequence.Append(1, k, k);
                model.Cache.Attend(1, model.Sequence, Tensor.Bf16(new ushort[Model.QueryRow]), Tensor.F16(output));
                Test.Equal(string.Join(" ", Tiled(f16, output.Length)), string.Join(" ", output), "F16 output");
            }
        }

        static ushort[] Tiled(ushort[] bits, int n)
        {
            var tiled = new ushort[n];
            for (int i = 0; i < n; ++i) tiled[i] = bits[i % bits.Length];
            return tiled;
        }

        public static unsafe void Native_memory_is_a_tensor_too()
        {
            using (var model = new Model())
            {
                model.Fill(model.Sequence, 5, 1);
                float[] q = Model.Numbers(Model.QueryRow, 2), output = new float[q.Length],
                    expected = new float[q.Length];
                model.Cache.Attend(0, model.Sequence, q, expected);
                fixed (float* queries = q, to = output)
                    model.Cache.Attend(0, model.Sequence, Tensor.At(queries, q.Length, Dtype.F32),
                                       Tensor.At(to, output.Length, Dtype.F32));
                Test.Same(expected, output, "native memory");
            }
        }
    }
}
