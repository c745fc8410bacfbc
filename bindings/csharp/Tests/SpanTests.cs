#if NET8_0_OR_GREATER
using System;

namespace Kvq.Tests
{
    static class SpanTests
    {
        public static void Spans_give_what_arrays_give()
        {
            using (var model = new Model())
            using (var other = new Sequence(model.Cache))
            {
                float[] k = Model.Numbers(5 * Model.Row, 1), v = Model.Numbers(5 * Model.Row, 2);
                float[] q = Model.Numbers(Model.QueryRow, 3), output = new float[3 + q.Length];
                other.Append(0, new ReadOnlySpan<float>(k), new ReadOnlySpan<float>(v));
                model.Cache.Attend(0, other, new ReadOnlySpan<float>(q), new Span<float>(output, 3, q.Length));
                model.Sequence.Append(0, k, v);
                var expected = new float[q.Length];
                model.Cache.Attend(0, model.Sequence, q, expected);
                Test.Same(expected, new Span<float>(output, 3, q.Length).ToArray(), "spans");
                Test.Throws<ArgumentNullException>("k", () => other.Append(0, new ReadOnlySpan<float>(),
                    new ReadOnlySpan<float>(v)));
                Test.Wrong("output has 4 elements", () => model.Cache.Attend(0, other, new ReadOnlySpan<float>(q),
                                               new Span<float>(output, 0, 4)));
                other.Append(0, k, v); // arrays still mean arrays
                Test.Equal(10, other.Length(0), "length");
                byte[] snapshot = model.Cache.Save(other);
                using (Sequence again = model.Cache.Load(new ReadOnlySpan<byte>(snapshot))[0])
                    Test.Equal(10, again.Length(0), "length of what a span holds");
                Test.Equal(1, model.Cache.DescribeSnapshot(new ReadOnlySpan<byte>(snapshot)).NSequences, "sequences");
                Test.Refused(Status.Format, "", () => model.Cache.Load(new ReadOnlySpan<byte>()));
            }
            using (var context = new Context())
            using (var cache = new Cache(context, new CacheOptions { NLayers = 1, QHeads = 1, KvHeads = 1, HeadDim = 16,
                Shapes = new[] { new LayerShape { KeyDim = 32, ValuesAreKeyPrefix = true } } }))
            using (var latent = new Sequence(cache))
            {
                latent.Append(0, new ReadOnlySpan<float>(new float[32]));
                latent.Append(0, new ReadOnlySpan<float>(new float[32]), new ReadOnlySpan<float>(new float[4], 2, 0));
                latent.Append(0, new float[32]); // an array still means an array
                Test.Equal(3, latent.Length(0), "length without values");
            }
            using (var context = new Context())
            using (Matrix matrix = Matrix.Quantize(context, Model.Numbers(8 * 64, 1), 8, 64))
            {
                float[] x = Model.Numbers(64, 2), one = new float[8], two = new float[8];
                matrix.Linear(x, one);
                matrix.Linear(new ReadOnlySpan<float>(x), new Span<float>(two));
                Test.Same(one, two, "products");
            }
        }
    }
}
#endif
