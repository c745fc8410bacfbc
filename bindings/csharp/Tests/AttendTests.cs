using System;

namespace Kvq.Tests
{
    /// Attention is what float64 says of the keys and values that were appended.
    static class AttendTests
    {
        public static void FP16_is_exact_attention_over_what_was_appended()
        {
            using (var model = new Model())
            {
                var (k, v) = model.Fill(model.Sequence, 70, 1);
                float[] q = Model.Numbers(3 * Model.QueryRow, 9), output = new float[q.Length];
                model.Cache.Attend(1, model.Sequence, q, output);
                for (int i = 0; i < 3; ++i) Model.Expect(output, i, q, k, v, 68 + i, "query " + i);
            }
        }

        public static void Sealed_pages_give_attention_over_what_they_decode_to()
        {
            using (var model = new Model("int4+hadamard"))
            {
                model.Fill(model.Sequence, 100, 3);
                float[] q = Model.Numbers(Model.QueryRow, 9), output = new float[q.Length];
                model.Cache.Attend(0, model.Sequence, q, output);
                for (int h = 0; h < Model.QHeads; ++h)
                {
                    float[][] decoded = Model.Decoded(model.Sequence, 0, h / 2);
                    double lse;
                    double[] expected = Model.Attention(q, h * Model.HeadDim, decoded[0], decoded[1], 0, 100, out lse);
                    // Integer pages multiply 8-bit fixed-point queries and probabilities on some processors.
                    for (int c = 0; c < Model.HeadDim; ++c)
                        Test.Near(expected[c], output[h * Model.HeadDim + c], 0.02, "head " + h);
                }
                Test.True(model.Sequence.Usage().SealedPages > 0, "pages were sealed");
            }
        }

        public static void Keys_and_queries_are_rotated_by_their_positions()
        {
            using (var model = new Model("fp16", Rope.Half))
            {
                float[] k = Model.Numbers(2 * Model.Row, 4), v = Model.Numbers(2 * Model.Row, 5);
                model.Sequence.Append(0, k, v, new[] { 3, 10 });
                float[] q = Model.Numbers(Model.QueryRow, 6), output = new float[q.Length];
                model.Cache.Attend(0, model.Sequence, q, output);
                float[] turned = Rotated(q, Model.QHeads, new[] { 10 });
                Model.Expect(output, 0, turned, Rotated(k, Model.KvHeads, new[] { 3, 10 }), v, 2, "rotated", 2e-3);
                var positions = new int[2];
                model.Sequence.Decode(0, 1, 0, 2, null, null, positions);
                Test.Equal("3 10", positions[0] + " " + positions[1], "positions");
            }
        }

        static float[] Rotated(float[] x, int heads, int[] positions)
        {
            var turned = (float[])x.Clone();
            const int half = Model.HeadDim / 2;
            for (int row = 0; row < x.Length / Model.HeadDim; ++row)
            {
                for (int j = 0; j < half; ++j)
                {
                    double angle = positions[row / heads] * Math.Pow(10000, -2.0 * j / Model.HeadDim);
                    int a = row * Model.HeadDim + j, b = a + half;
                    turned[a] = (float)(x[a] * Math.Cos(angle) - x[b] * Math.Sin(angle));
                    turned[b] = (float)(x[a] * Math.Sin(angle) + x[b] * Math.Cos(angle));
                }
            }
            return turned;
        }

        public static void A_batch_takes_counts_positions_window_cap_sinks_and_gives_lse()
        {
            using (var model = new Model())
            using (var other = new Sequence(model.Cache))
            {
                var (k, v) = model.Fill(model.Sequence, 40, 1);
                var (otherK, otherV) = model.Fill(other, 9, 7);
                float[] q = Model.Numbers(3 * Model.QueryRow, 11);
                var sinks = new[] { 0.5f, -1, float.NegativeInfinity, 2 };
                var batch = new AttendBatch
                {
                    Sequences = new[] { other, model.Sequence },
                    QueryCounts = new[] { 1, 2 },
                    QueryPositions = new[] { 8, 20, 39 },
                    Q = q,
                    Output = new float[q.Length],
                    Lse = new float[3 * Model.QHeads],
                    Sinks = sinks,
                    SlidingWindow = 16,
                    LogitSoftcap = 1.5f,
                };
                var output = new float[q.Length];
                batch.Output = output;
                model.Cache.Attend(0, batch);
                for (int i = 0; i < 3; ++i)
                {
                    int position = batch.QueryPositions[i];
                    for (int h = 0; h < Model.QHeads; ++h)
                    {
                        int at = i * Model.QueryRow + h * Model.HeadDim;
                        double lse;
                        double[] expected = Model.Attention(q, at, Model.Head(i == 0 ? otherK : k, h / 2),
                                                            Model.Head(i == 0 ? otherV : v, h / 2),
                                                            Math.Max(0, position - 15),
                                                            position + 1, out lse, 1.5, sinks[h]);
                        Test.Near(lse, batch.Lse[i * Model.QHeads + h], 1e-5, "lse");
                        for (int c = 0; c < Model.HeadDim; ++c)
                            Test.Near(expected[c], output[at + c], 2e-6, "query " + i);
                    }
                }
            }
        }

        public static void Parts_of_a_context_merge_by_lse()
        {
            using (var model = new Model())
            using (var first = new Sequence(model.Cache))
            using (var second = new Sequence(model.Cache))
            {
                float[] k = Model.Numbers(50 * Model.Row, 1), v = Model.Numbers(50 * Model.Row, 2);
                model.Sequence.Append(0, k, v);
                int cut = 20 * Model.Row;
                first.Append(0, Tensor.F32(k, 0, cut), Tensor.F32(v, 0, cut));
                second.Append(0, Tensor.F32(k, cut, k.Length - cut), Tensor.F32(v, cut, v.Length - cut));
                float[] q = Model.Numbers(Model.QueryRow, 3);
                float[] whole = WithLse(model.Cache, model.Sequence, q).Item1;
                var (a, lseA) = WithLse(model.Cache, first, q);
                var (b, lseB) = WithLse(model.Cache, second, q);
                for (int i = 0; i < whole.Length; ++i)
                {
                    int h = i / Model.HeadDim;
                    double lse = Math.Log(Math.Exp(lseA[h]) + Math.Exp(lseB[h]));
                    Test.Near(Math.Exp(lseA[h] - lse) * a[i] + Math.Exp(lseB[h] - lse) * b[i], whole[i], 2e-6,
                        "merged");
                }
            }
        }

        static (float[], float[]) WithLse(Cache cache, Sequence sequence, float[] q)
        {
            float[] output = new float[q.Length], lse = new float[Model.QHeads];
            cache.Attend(0, new AttendBatch { Sequences = new[] { sequence }, Q = q, Output = output, Lse = lse });
            return (output, lse);
        }

        public static void Strides_reach_into_one_tensor_of_queries_keys_and_values()
        {
            const int tokens = 5, width = Model.QueryRow + 2 * Model.Row;
            using (var model = new Model())
            using (var dense = new Sequence(model.Cache))
            {
                float[] all = Model.Numbers(tokens * width, 8), k = new float[tokens * Model.Row],
                    v = new float[k.Length];
                var q = new float[Model.QueryRow];
                for (int t = 0; t < tokens; ++t)
                {
                    Array.Copy(all, t * width + Model.QueryRow, k, t * Model.Row, Model.Row);
                    Array.Copy(all, t * width + Model.QueryRow + Model.Row, v, t * Model.Row, Model.Row);
                }
                Array.Copy(all, (tokens - 1) * width, q, 0, q.Length);
                model.Cache.Append(0, new AppendBatch
                {
                    Sequences = new[] { model.Sequence }, TokenCounts = new[] { tokens },
                    K = Tensor.F32(all, Model.QueryRow, all.Length - Model.QueryRow),
                    V = Tensor.F32(all, Model.QueryRow + Model.Row, all.Length - Model.QueryRow - Model.Row),
                    KTokenStride = width, KHeadStride = Model.HeadDim, VTokenStride = width, VHeadStride = Model.HeadDim
                });
                // Heads of the output lie 32 apart, queries 256: what is between stays as it is.
                var spread = new float[2 * 256];
                for (int i = 0; i < spread.Length; ++i) spread[i] = 77;
                model.Cache.Attend(0, new AttendBatch
                {
                    Sequences = new[] { model.Sequence }, QueryCounts = new[] { 2 },
                    Q = Tensor.F32(all, (tokens - 2) * width, 2 * width), QTokenStride = width,
                    QHeadStride = Model.HeadDim, Output = spread, OutputTokenStride = 256, OutputHeadStride = 32,
                });
                var output = new float[Model.QueryRow];
                for (int h = 0; h < Model.QHeads; ++h)
                    Array.Copy(spread, 256 + h * 32, output, h * Model.HeadDim, Model.HeadDim);
                Model.Expect(output, 0, q, k, v, tokens, "strided");
                Test.Equal(77f, spread[256 + Model.HeadDim], "what is between heads");
            }
        }

        public static void Half_precision_goes_in_and_comes_out()
        {
            using (var model = new Model())
            using (var bfloat = new Sequence(model.Cache))
            {
                // Powers of two and their sums are the same numbers in all three types.
                var pattern = new[] { 1f, -0.5f, 0.25f, 1.5f, -2f, 0.75f, 0f, -1f };
                float[] k = new float[2 * Model.Row], q = new float[Model.QueryRow];
                for (int i = 0; i < k.Length; ++i) k[i] = pattern[i % 8];
                for (int i = 0; i < q.Length; ++i) q[i] = pattern[(i + 3) % 8];
                model.Sequence.Append(0, Tensor.F16(Halves(k)), Tensor.F16(Halves(k)));
                bfloat.Append(0, Tensor.Bf16(Brain(k)), Tensor.Bf16(Brain(k)));
                var output = new float[Model.QueryRow];
                model.Cache.Attend(0, model.Sequence, Tensor.F16(Halves(q)), output);
                Model.Expect(output, 0, q, k, k, 2, "F16");
                var bits = new ushort[Model.QueryRow];
                model.Cache.Attend(0, bfloat, Tensor.Bf16(Brain(q)), Tensor.Bf16(bits));
                for (int i = 0; i < bits.Length; ++i)
                    Test.Near(output[i], BitConverter.ToSingle(BitConverter.GetBytes((uint)bits[i] << 16), 0), 0.01,
                        "BF16");
            }
        }

        static ushort[] Brain(float[] x) =>
            Array.ConvertAll(x, one => (ushort)(BitConverter.ToUInt32(BitConverter.GetBytes(one), 0) >> 16));

        /// For numbers that binary16 holds exactly.
        static ushort[] Halves(float[] x) => Array.ConvertAll(x, one =>
        {
            uint bits = BitConverter.ToUInt32(BitConverter.GetBytes(one), 0);
            if (bits << 1 == 0) return (ushort)(bits >> 16);
            uint exponent = (bits >> 23 & 255) - 127 + 15;
            return (ushort)(bits >> 16 & 0x8000 | exponent << 10 | bits >> 13 & 0x3ff);
        });

        public static unsafe void Native_memory_is_a_tensor_too()
        {
            using (var model = new Model())
            {
                var (k, v) = model.Fill(model.Sequence, 5, 1);
                float[] q = Model.Numbers(Model.QueryRow, 2), output = new float[q.Length];
                fixed (float* queries = q, to = output)
                    model.Cache.Attend(0, model.Sequence, Tensor.At(queries, q.Length, Dtype.F32),
                                       Tensor.At(to, output.Length, Dtype.F32));
                Model.Expect(output, 0, q, k, v, 5, "native memory");
            }
        }
    }
}
