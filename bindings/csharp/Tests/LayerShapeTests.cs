using System;

namespace Kvq.Tests
{
    /// Layers that differ from their cache's others.
    static class LayerShapeTests
    {
        /// Query heads, KV heads, channels of keys and channels of values.
        static readonly int[][] Heads = { new[] { 4, 2, 64, 64 }, new[] { 6, 3, 192, 128 }, new[] { 4, 2, 256, 256 } };

        static CacheOptions Usual(int layers, params LayerShape[] shapes) =>
            new CacheOptions { NLayers = layers, QHeads = 4, KvHeads = 2, HeadDim = 64, Shapes = shapes };

        static CacheOptions Mixed() => Usual(3,
            new LayerShape { FirstLayer = 1, QHeads = 6, KvHeads = 3, KeyDim = 192, ValueDim = 128, RopeBase = 1e6f },
            new LayerShape { FirstLayer = 2, KeyDim = 256, ValueDim = 256, Rope = Rope.None, Scale = 0.5f,
                LogitSoftcap = 20 });

        /// Integers, which FP16 has all of.
        static float[] Integers(int n, uint seed) => Array.ConvertAll(Model.Numbers(n, seed), x => (float)(int)(9 * x));

        /// Values [tokens, kv_heads, value_dim] as outputs have them where every query sees its token alone.
        static float[] Repeated(float[] v, int[] heads)
        {
            int group = heads[0] / heads[1], channels = heads[3];
            var output = new float[v.Length * group];
            for (int i = 0; i < output.Length; ++i) output[i] = v[i / channels / group * channels + i % channels];
            return output;
        }

        static float[] Part(float[] x, int begin, int length)
        {
            var part = new float[length];
            Array.Copy(x, begin, part, 0, length);
            return part;
        }

        public static void Layers_have_shapes_of_their_own()
        {
            using (var context = new Context())
            using (var cache = new Cache(context, Mixed()))
            using (Sequence a = new Sequence(cache), b = new Sequence(cache), c = new Sequence(cache),
                d = new Sequence(cache))
                for (int layer = 0; layer < 3; ++layer)
                {
                    int[] heads = Heads[layer];
                    LayerInfo info = cache.DescribeLayer(layer);
                    Test.Equal(string.Join(" ", heads), info.QHeads + " " + info.KvHeads + " " + info.KeyDim + " " +
                        info.ValueDim, "the layer");
                    int key = heads[1] * heads[2], value = heads[1] * heads[3], query = heads[0] * heads[2];
                    float[] k = Integers(2 * key, 1), v = Integers(2 * value, 2), q = Model.Numbers(2 * query, 3);
                    float[] expected = Repeated(v, heads), output = new float[heads[0] * heads[3]];

                    a.Append(layer, Part(k, 0, key), Part(v, 0, value));
                    cache.Attend(layer, a, Part(q, 0, query), output);
                    Test.Same(Part(expected, 0, output.Length), output, "output");
                    float[] keys = new float[heads[2]], values = new float[heads[3]];
                    a.Decode(layer, heads[1] - 1, 0, 1, keys, values);
                    Test.Same(Part(v, value - heads[3], heads[3]), values, "decoded value");

                    cache.Append(layer, new AppendBatch { Sequences = new[] { b, c }, K = k, V = v });
                    var both = new float[expected.Length];
                    cache.Attend(layer, new AttendBatch { Sequences = new[] { b, c }, Q = q, Output = both,
                        Lse = new float[2 * heads[0]] });
                    Test.Same(expected, both, "output of a batch");
                    output = new float[output.Length];
                    cache.Extend(layer, new ExtendBatch { Sequences = new[] { d }, K = Part(k, 0, key),
                        V = Part(v, 0, value), Q = Part(q, 0, query), Output = output, Lse = new float[heads[0]] });
                    Test.Same(Part(expected, 0, output.Length), output, "output of extend");
                }
        }

        public static void Lengths_of_other_layers_are_refused()
        {
            using (var context = new Context())
            using (var cache = new Cache(context, Mixed()))
            using (var one = new Sequence(cache))
            {
                Func<int, float[]> f = n => new float[n];
                var all = new[] { one };
                one.Append(1, f(576), f(384));
                Test.Wrong("k has 128 elements; [tokens, kv_heads, key_dim] takes a multiple of 576",
                    () => one.Append(1, f(128), f(128)));
                Test.Wrong("v has 576 elements; [tokens, kv_heads, value_dim] takes 384",
                    () => one.Append(1, f(576), f(576)));
                Test.Wrong("q has 768 elements; [queries, q_heads, key_dim] takes a multiple of 1152",
                    () => cache.Attend(1, one, f(768), f(768)));
                Test.Wrong("output has 1152 elements; [queries, q_heads, value_dim] takes 768",
                    () => cache.Attend(1, one, f(1152), f(1152)));
                Test.Wrong("V has 383 elements; 1 rows of 3 heads of 128 reach to 384",
                    () => cache.Append(1, new AppendBatch { Sequences = all, K = f(576), V = f(383) }));
                Test.Wrong("Q has 768 elements; 1 rows of 6 heads of 192 reach to 1152",
                    () => cache.Attend(1, new AttendBatch { Sequences = all, Q = f(768), Output = f(768) }));
                Test.Wrong("Output has 512 elements; 1 rows of 6 heads of 128 reach to 768",
                    () => cache.Extend(1, new ExtendBatch { Sequences = all, K = f(576), V = f(384), Q = f(1152),
                        Output = f(512) }));
                Test.Wrong("Sinks has 4 elements; [q_heads] takes 6",
                    () => cache.Attend(1, new AttendBatch { Sequences = all, Q = f(1152), Output = f(768),
                        Sinks = f(4) }));
                Test.Wrong("k has 128 elements; [slots, key_dim] takes 192",
                    () => one.Decode(1, 0, 0, 1, f(128), null));
                Test.Wrong("v has 64 elements; [slots, value_dim] takes 128",
                    () => one.Decode(1, 0, 0, 1, null, f(64)));
                Test.Refused(Status.Argument, "layer is 3", () => cache.Attend(3, one, f(256), f(256)));
                Test.Refused(Status.Argument, "layer is 3",
                    () => cache.Append(3, new AppendBatch { Sequences = all, K = f(128), V = f(128) }));
                cache.Dispose();
                Test.Refused(Status.Argument, "layer is -1", () => one.Append(-1, f(128), f(128)));
                Test.Refused(Status.Argument, "layer is 3", () => one.Decode(3, 0, 0, 1, f(64), f(64)));
                one.Append(1, f(576), f(384));
                Test.Equal(2, one.Length(1), "length");
            }
        }

        /// An ordinary layer, and a latent one: 64 channels of values, and 32 behind them that are rotated.
        static CacheOptions Latent() => Usual(2, new LayerShape { FirstLayer = 1, KvHeads = 1, KeyDim = 96,
            ValueDim = 64, ValuesAreKeyPrefix = true, Scale = 0.1f });

        /// A row of 96 channels at a position, the last 32 rotated.
        static double[] Rotated(float[] x, int row, int position)
        {
            double[] rotated = Array.ConvertAll(Part(x, row * 96, 96), it => (double)it);
            for (int pair = 0; pair < 16; ++pair)
            {
                double angle = position * Math.Pow(10000, -pair / 16.0), a = rotated[64 + pair], b = rotated[80 + pair];
                rotated[64 + pair] = a * Math.Cos(angle) - b * Math.Sin(angle);
                rotated[80 + pair] = b * Math.Cos(angle) + a * Math.Sin(angle);
            }
            return rotated;
        }

        /// Attention of four heads of the last queries to keys whose first 64 channels are the values.
        static double[] Attended(float[] k, float[] q)
        {
            int n = k.Length / 96, rows = q.Length / 96;
            var output = new double[rows * 64];
            for (int row = 0; row < rows; ++row)
            {
                int position = n - rows / 4 + row / 4;
                double total = 0;
                double[] query = Rotated(q, row, position);
                for (int at = 0; at <= position; ++at)
                {
                    double logit = 0;
                    double[] key = Rotated(k, at, at);
                    for (int c = 0; c < 96; ++c) logit += 0.1 * key[c] * query[c];
                    total += Math.Exp(logit);
                    for (int c = 0; c < 64; ++c) output[row * 64 + c] += Math.Exp(logit) * key[c];
                }
                for (int c = 0; c < 64; ++c) output[row * 64 + c] /= total;
            }
            return output;
        }

        static void Close(double[] expected, float[] found, string what)
        {
            Test.Equal(expected.Length, found.Length, what + "'s length");
            for (int i = 0; i < found.Length; ++i) Test.Near(expected[i], found[i], 1e-3, what + "[" + i + "]");
        }

        public static void Layers_with_a_window_free_what_no_query_sees()
        {
            CacheOptions options = Usual(2, new LayerShape { FirstLayer = 1, SlidingWindow = -1 });
            options.SlidingWindow = 64;
            using (var context = new Context())
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                float[] rows = Model.Numbers(50 * 2 * 64, 3);
                for (int i = 0; i < 20; ++i) sequence.Append(i % 2, rows, rows);
                for (int layer = 0; layer < 2; ++layer)
                {
                    Test.Equal(layer == 0 ? 64 : 0, cache.DescribeLayer(layer).SlidingWindow, "window");
                    Test.Equal(layer == 0 ? 500 - 384 : 500, sequence.Slots(layer, 1), "slots");
                }
            }
        }

        public static void Values_may_be_a_prefix_of_keys()
        {
            using (var context = new Context())
            using (var cache = new Cache(context, Latent()))
            using (Sequence a = new Sequence(cache), b = new Sequence(cache), c = new Sequence(cache))
            {
                LayerInfo info = cache.DescribeLayer(1);
                Test.True(info.ValuesAreKeyPrefix && !cache.DescribeLayer(0).ValuesAreKeyPrefix, "descriptions");
                Test.Equal("64 32", info.RotaryBegin + " " + info.RotaryDim, "rotated channels");
                float[] k = Model.Numbers(50 * 96, 1), q = Model.Numbers(3 * 4 * 96, 2);
                float[] before = Part(k, 0, 47 * 96), last = Part(k, 47 * 96, 3 * 96), twice = new float[94 * 96];
                before.CopyTo(twice, 0);
                before.CopyTo(twice, before.Length);
                double[] expected = Attended(k, q);

                a.Append(1, before);
                a.Append(1, (Tensor)last, positions: new[] { 47, 48, 49 });
                cache.Append(1, new AppendBatch { Sequences = new[] { b, c }, TokenCounts = new[] { 47, 47 },
                    K = twice });
                cache.Append(1, new AppendBatch { Sequences = new[] { b }, TokenCounts = new[] { 3 }, K = last,
                    V = new float[0] });
                foreach (Sequence sequence in new[] { a, b })
                {
                    var attended = new float[expected.Length];
                    cache.Attend(1, sequence, q, attended);
                    Close(expected, attended, "output");
                }
                var output = new float[expected.Length];
                cache.Extend(1, new ExtendBatch { Sequences = new[] { c }, TokenCounts = new[] { 3 }, K = last, Q = q,
                    Output = output });
                Close(expected, output, "output of extend");
                float[] keys = new float[50 * 96], values = new float[50 * 64];
                c.Decode(1, 0, 0, 50, keys, values);
                for (int i = 0; i < 50; ++i) Test.Same(Part(keys, i * 96, 64), Part(values, i * 64, 64), "value " + i);
                string saved = Convert.ToBase64String(a.Save());
                Test.Equal(saved, Convert.ToBase64String(b.Save()), "the second snapshot");
                Test.Equal(saved, Convert.ToBase64String(c.Save()), "the third snapshot");
                using (Sequence loaded = cache.LoadSequence(a.Save()))
                    Test.Equal(saved, Convert.ToBase64String(loaded.Save()), "the loaded sequence");
            }
        }

        public static void Values_are_given_exactly_where_keys_do_not_contain_them()
        {
            using (var context = new Context())
            using (var cache = new Cache(context, Latent()))
            using (var one = new Sequence(cache))
            {
                Func<int, float[]> f = n => new float[n];
                var all = new[] { one };
                const string given = " has 64 elements; there must be none: the layer's values are a prefix of its " +
                    "keys";
                Test.Wrong("v" + given, () => one.Append(1, f(96), f(64)));
                Test.Wrong("v" + given, () => one.Append(1, Tensor.F16(new ushort[96]), f(64)));
                Test.Wrong("V" + given, () => cache.Append(1, new AppendBatch { Sequences = all, K = f(96),
                    V = f(64) }));
                Test.Wrong("V" + given, () => cache.Extend(1, new ExtendBatch { Sequences = all, K = f(96), V = f(64),
                    Q = f(384), Output = f(256) }));
                Test.Throws<ArgumentNullException>("v", () => one.Append(0, f(128)));
                Test.Throws<ArgumentNullException>("V", () => cache.Append(0, new AppendBatch { Sequences = all,
                    K = f(128) }));
                Test.Throws<ArgumentNullException>("V", () => cache.Extend(0, new ExtendBatch { Sequences = all,
                    K = f(128), Q = f(256), Output = f(256) }));
                Test.Wrong("v has 0 elements; [tokens, kv_heads, value_dim] takes 128",
                    () => one.Append(0, f(128), f(0)));
                Test.Equal(0, one.Length(0) + one.Length(1), "length");
                one.Append(1, Tensor.F16(new ushort[96]));
                Test.Equal(1, one.Length(1), "length");

                Action<string, LayerShape> wrong = (part, shape) =>
                    Test.Wrong(part, () => new Cache(context, Usual(1, shape)));
                wrong("Shapes[0].InvFreq has 48 elements; [rotated channels / 2] takes 16",
                    new LayerShape { KeyDim = 96, ValuesAreKeyPrefix = true, InvFreq = new float[48] });
                wrong("takes 8", new LayerShape { KeyDim = 96, ValueDim = 80, ValuesAreKeyPrefix = true,
                    InvFreq = new float[16] });
                new Cache(context, Usual(1, new LayerShape { KeyDim = 96, ValuesAreKeyPrefix = true, RotaryBegin = 80,
                    InvFreq = new float[8] })).Dispose();
                Test.Refused(Status.Argument, "options->shapes[0].values_are_key_prefix is 1, but keys have 64",
                    () => new Cache(context, Usual(1, new LayerShape { ValuesAreKeyPrefix = true })));
            }
        }

        public static void Snapshots_load_into_the_same_shapes_alone()
        {
            CacheOptions fewer = Mixed();
            fewer.Shapes = new[] { fewer.Shapes[0] };
            using (var context = new Context())
            using (Cache cache = new Cache(context, Mixed()), same = new Cache(context, Mixed()))
            using (Cache usual = new Cache(context, Usual(3)), other = new Cache(context, fewer))
            using (var sequence = new Sequence(cache))
            {
                for (int layer = 0; layer < 3; ++layer)
                {
                    int rows = 40 * Heads[layer][1];
                    sequence.Append(layer, Model.Numbers(rows * Heads[layer][2], 1),
                        Model.Numbers(rows * Heads[layer][3], 2));
                }
                byte[] snapshot = sequence.Save();
                using (Sequence loaded = same.LoadSequence(snapshot))
                    Test.Equal(Convert.ToBase64String(snapshot), Convert.ToBase64String(loaded.Save()), "snapshot");
                Test.Refused(Status.Mismatch, "layers of different shapes", () => usual.LoadSequence(snapshot));
                Test.Refused(Status.Mismatch, "", () => other.LoadSequence(snapshot));
            }
        }

        public static void Layers_may_read_the_pages_of_another_one()
        {
            CacheOptions options = Mixed();
            options.Shapes[1] = new LayerShape { FirstLayer = 2, QHeads = 6, PagesOfLayer = 1 };
            float[] k = Model.Numbers(40 * 3 * 192, 1), v = Model.Numbers(40 * 3 * 128, 2);
            using (var context = new Context())
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                sequence.Append(1, k, v);
                var outputs = new[] { new float[6 * 128], new float[6 * 128] };
                for (int i = 0; i < 2; ++i)
                {
                    Test.Equal(1, cache.DescribeLayer(i + 1).PagesOfLayer, "the layer with the pages");
                    Test.Equal(40, sequence.Length(i + 1), "length");
                    cache.Attend(i + 1, sequence, Model.Numbers(6 * 192, 3), outputs[i]);
                }
                Test.Same(outputs[0], outputs[1], "output");
                Test.Refused(Status.Argument, "layer is 2, which reads the pages of layer 1",
                    () => sequence.Append(2, k, v));
                options.Shapes[1].PagesOfLayer = 2;
                Test.Refused(Status.Argument, "options->shapes[1].pages_of_layer is 2",
                    () => new Cache(context, options));
            }
        }

        public static void States_of_recurrent_layers_go_with_a_sequence()
        {
            CacheOptions options = Usual(4,
                new LayerShape { FirstLayer = 1, Recurrent = true },
                new LayerShape { FirstLayer = 3, Recurrent = true });
            float[] tokens = Model.Numbers(70 * 128, 1);
            using (var context = new Context())
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                Test.True(cache.DescribeLayer(1).Recurrent && !cache.DescribeLayer(2).Recurrent, "recurrent layers");
                sequence.Append(0, tokens, tokens);
                sequence.Append(2, tokens, tokens);
                Test.Wrong("layer is 1, which is recurrent", () => sequence.Append(1, tokens, tokens));
                sequence.PutState(1, 64, new byte[] { 1, 2, 3 });
                sequence.PutState(3, 64, new byte[] { 4 });
                sequence.PutState(1, 70, new byte[] { 5 });
                Test.Equal(70, sequence.FindState(1, 100), "the newest state of a layer");
                Test.Equal(64, sequence.FindStates(100), "the newest states of all");
                Test.Refused(Status.State, "length is 32, but layer 1 has no state", () => sequence.Truncate(32));
                using (Sequence loaded = cache.LoadSequence(sequence.Save()))
                {
                    loaded.Truncate(64);
                    Test.Equal("AQID", Convert.ToBase64String(loaded.GetState(1, 64)), "the state");
                }
                sequence.DropStates(0, 70);
                Test.Refused(Status.Argument, "layer 3 has no state", () => sequence.GetState(3, 64));
            }
        }

        static string[] Keys(Context context, CacheOptions options)
        {
            using (var cache = new Cache(context, options))
            using (var sequence = new Sequence(cache))
            {
                var found = new string[2];
                float[] x = Model.Numbers(128, 1), k = new float[64];
                for (int layer = 0; layer < 2; ++layer)
                {
                    sequence.Append(layer, x, x, new[] { 9 });
                    sequence.Decode(layer, 1, 0, 1, k, null);
                    found[layer] = string.Join(" ", k);
                }
                return found;
            }
        }

        public static void Frequencies_of_a_layer_are_checked_and_used()
        {
            using (var context = new Context())
            {
                CacheOptions plain = Usual(2);
                plain.Rope = Rope.None;
                string still = Keys(context, plain)[0], usual = Keys(context, Usual(2))[0];
                var frequencies = new float[32]; // of the second layer, after those of the first
                for (int i = 0; i < 32; ++i) frequencies[i] = (float)Math.Pow(10000, -i / 32.0);
                string[] given = Keys(context, Usual(2, new LayerShape { InvFreq = new float[32] },
                    new LayerShape { FirstLayer = 1, InvFreq = frequencies }));
                Test.Equal(still, given[0], "keys of the first layer");
                Test.Equal(usual, given[1], "keys of the second layer");
                Test.True(still != usual, "one is rotated");

                Action<string, LayerShape> wrong = (part, shape) =>
                    Test.Wrong(part, () => new Cache(context, Usual(2, shape)));
                wrong("Shapes[0].InvFreq has 16 elements; [rotated channels / 2] takes 32",
                    new LayerShape { InvFreq = new float[16] });
                wrong("takes 8", new LayerShape { RotaryBegin = 48, InvFreq = new float[16] });
                wrong("takes 8", new LayerShape { KeyDim = 32, RotaryDim = 16, InvFreq = new float[16] });
                wrong("Shapes[0] is null", null);
                Action<string, LayerShape> refused = (part, shape) =>
                    Test.Refused(Status.Argument, part, () => new Cache(context, Usual(2, shape)));
                refused("options->shapes[0].rotary_begin is 100", new LayerShape { RotaryBegin = 100 });
                refused("options->shapes[0].key_dim is 12", new LayerShape { KeyDim = 12 });
                refused("options->shapes[0].n_layers is 3", new LayerShape { NLayers = 3 });
            }
        }
    }
}
