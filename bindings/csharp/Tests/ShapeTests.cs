using System;

namespace Kvq.Tests
{
    /// Wrong shapes are refused before a call, by messages that name the argument and both sizes.
    static class ShapeTests
    {
        public static void Appends()
        {
            using (var model = new Model())
            {
                var good = new float[2 * Model.Row];
                Action<string, Tensor, Tensor> refused = (part, k, v) =>
                    Test.Wrong(part, () => model.Sequence.Append(0, k, v));
                refused("k has 31 elements; [tokens, kv_heads, key_dim] takes a multiple of 32", new float[31], good);
                refused("k has 0 elements", new float[0], new float[0]);
                refused("v has 32 elements; [tokens, kv_heads, value_dim] takes 64", good, new float[32]);
                refused("v is F16 but k is F32", good, Tensor.F16(new ushort[64]));
                refused("k", default(Tensor), good);
                Test.Wrong("positions has 3 elements; there are 2 rows",
                                               () => model.Sequence.Append(0, good, good, new int[3]));
                Test.Refused(Status.Argument, "layer", () => model.Sequence.Append(2, good, good));
                Test.Refused(Status.Argument, "position", () => model.Sequence.Append(0, good, good, new[] { 5, 5 }));
                Test.Equal(0, model.Sequence.Length(0), "length");
            }
        }

        public static void Attends()
        {
            using (var model = new Model())
            {
                model.Fill(model.Sequence, 4, 1);
                var good = new float[Model.QueryRow];
                Action<string, float[], float[]> refused = (part, q, output) =>
                    Test.Wrong(part, () => model.Cache.Attend(0, model.Sequence, q, output));
                refused("q has 65 elements; [queries, q_heads, key_dim] takes a multiple of 64", new float[65], good);
                refused("output has 63 elements; [queries, q_heads, value_dim] takes 64", good, new float[63]);
                refused("q", null, good);
                Test.Throws<ArgumentNullException>("sequence", () => model.Cache.Attend(0, null, good, good));
                Test.Refused(Status.Argument, "layer", () => model.Cache.Attend(-1, model.Sequence, good,
                    new float[64]));
            }
        }

        public static void Batches()
        {
            using (var model = new Model())
            {
                model.Fill(model.Sequence, 4, 1);
                Action<string, Action<AttendBatch>> refused = (part, change) =>
                {
                    var batch = new AttendBatch
                    {
                        Sequences = new[] { model.Sequence }, Q = new float[Model.QueryRow],
                        Output = new float[Model.QueryRow],
                    };
                    model.Cache.Attend(0, batch);
                    Test.Wrong(part, () =>
                    {
                        change(batch);
                        model.Cache.Attend(0, batch);
                    });
                };
                refused("Q has 10 elements; 1 rows of 4 heads of 16 reach to 64", it => it.Q = new float[10]);
                refused("Output has 63 elements", it => it.Output = new float[63]);
                refused("Q has 64 elements; 1 rows of 4 heads of 16 reach to 76", it => it.QHeadStride = 20);
                refused("reach to", it => it.QHeadStride = long.MaxValue);
                refused("Q head stride is -1, must not be negative", it => it.QHeadStride = -1);
                refused("QueryCounts has 2 elements; there are 1 sequences", it => it.QueryCounts = new[] { 1, 1 });
                refused("QueryCounts[0] is 0, must be at least 1", it => it.QueryCounts = new[] { 0 });
                refused("QueryPositions has 2 elements; there are 1 rows", it => it.QueryPositions = new int[2]);
                refused("Lse has 3 elements; [queries, q_heads] takes 4", it => it.Lse = new float[3]);
                refused("Sinks has 5 elements; [q_heads] takes 4", it => it.Sinks = new float[5]);
                var append = new AppendBatch { Sequences = new[] { model.Sequence, model.Sequence }, K = new float[64],
                    V = new float[64] };
                Test.Refused(Status.Argument, "sequences[1]", () => model.Cache.Append(0, append));
                append.TokenCounts = new[] { 2 };
                Test.Wrong("TokenCounts has 1 elements", () => model.Cache.Append(0, append));
                var extend = new ExtendBatch { Sequences = new[] { model.Sequence }, K = new float[Model.Row],
                    V = new float[Model.Row], Q = new float[63], Output = new float[Model.QueryRow] };
                Test.Wrong("Q has 63 elements; 1 rows of 4 heads of 16 reach to 64",
                    () => model.Cache.Extend(0, extend));
                Test.Equal(4, model.Sequence.Length(0), "length");
                refused("Sequences is empty", it => it.Sequences = new Sequence[0]);
                refused("Sequences[1]", it => it.Sequences = new[] { model.Sequence, null });
            }
        }

        public static void Tensors()
        {
            Test.Wrong("offset 3 and length 2 reach beyond an array of 4", () => Tensor.F32(new float[4], 3, 2));
            Test.Wrong("offset -1", () => Tensor.F32(new float[4], -1, 2));
            Test.Wrong("dtype is F32", () => Tensor.Halves(new ushort[4], 0, 4, Dtype.F32));
            Test.Throws<ArgumentNullException>("values", () => Tensor.F16(null));
        }

        public static void Decoding_and_frequencies()
        {
            using (var model = new Model())
            {
                model.Fill(model.Sequence, 4, 1);
                Test.Wrong("k has 63 elements; [slots, key_dim] takes 64",
                                               () => model.Sequence.Decode(0, 0, 0, 4, new float[63], null));
                Test.Wrong("positions has 1 elements", () => model.Sequence.Decode(0, 0, 0, 4, null, null, new int[1]));
                Test.Refused(Status.Argument, "n is 0", () => model.Sequence.Decode(0, 0, 0, 0, new float[0], null));
                Test.Refused(Status.Argument, "kv_head", () => model.Sequence.Decode(0, 9, 0, 1, new float[16], null));
                CacheOptions options = Model.Shape(Rope.Half);
                options.InvFreq = new float[7];
                Test.Wrong("InvFreq has 7 elements; [rotated channels / 2] takes 8",
                                               () => new Cache(model.Context, options));
            }
        }

        public static void Text_with_a_NUL_or_half_a_character_is_refused()
        {
            using (var context = new Context())
            {
                Test.Wrong("yaml has a NUL character at 4", () => Policy.Load(context, "int4\0"));
                Test.Wrong("", () => Policy.Load(context, "\ud800"));
                Test.Throws<ArgumentNullException>("yaml", () => Policy.Load(context, null));
                Test.Wrong("CpuIsa", () => new Context(new ContextOptions { CpuIsa = "a\0" }));
            }
        }
    }
}
