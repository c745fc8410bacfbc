using System;

namespace Kvq.Tests
{
    static class SequenceTests
    {
        public static void Lengths_slots_and_decoded_tokens_are_what_was_appended()
        {
            using (var model = new Model())
            {
                var (k, v) = model.Fill(model.Sequence, 40, 1);
                Test.Equal(40, model.Sequence.Length(1), "length");
                Test.Equal(40, model.Sequence.Slots(1, 1), "slots");
                Test.Same(Model.Head(k, 1), Model.Decoded(model.Sequence, 1, 1)[0], "keys");
                Test.Same(Model.Head(v, 0), Model.Decoded(model.Sequence, 1, 0)[1], "values");
                Usage usage = model.Sequence.Usage();
                Test.Equal(2L * 40 * Model.Row * Model.Layers, usage.Scalars, "scalars");
                Test.Equal(2UL * (ulong)usage.Scalars, usage.PlainFp16Bytes, "FP16 bytes");
                Test.Equal(usage.SealedBytes + usage.Fp16Bytes + usage.MetadataBytes + usage.WorkspaceBytes,
                    usage.TotalBytes, "sum of bytes");
                Test.True(model.Cache.Usage().TotalBytes > usage.TotalBytes, "the cache has more than its sequence");
            }
        }

        public static void Forks_share_pages_and_go_their_own_ways()
        {
            using (var model = new Model())
            {
                float[] k = model.Fill(model.Sequence, 64, 1).k;
                using (Sequence fork = model.Sequence.Fork())
                {
                    Test.Equal(2UL * 2 * Model.Layers * Model.KvHeads / 2, model.Cache.Usage().SharedPages,
                        "shared pages");
                    fork.Truncate(40);
                    float[] more = model.Fill(fork, 2, 5).k;
                    Test.Equal(42, fork.Length(0), "length of the fork");
                    Test.Equal(64, model.Sequence.Length(0), "length of its parent");
                    Test.Same(Model.Head(k, 0), Model.Decoded(model.Sequence, 0, 0)[0], "the parent's keys");
                    float[] expected = new float[42 * Model.Row];
                    Array.Copy(k, expected, 40 * Model.Row);
                    Array.Copy(more, 0, expected, 40 * Model.Row, more.Length);
                    Test.Same(Model.Head(expected, 0), Model.Decoded(fork, 0, 0)[0], "the fork's keys");
                }
            }
        }

        public static void Cutting_into_a_sealed_page_is_refused_and_changes_nothing()
        {
            using (var model = new Model("int4"))
            {
                model.Fill(model.Sequence, 100, 1);
                byte[] before = model.Sequence.Save();
                Test.Refused(Status.State, "32", () => model.Sequence.Truncate(50));
                Test.Refused(Status.Argument, "length", () => model.Sequence.Truncate(-1));
                Test.Equal(Convert.ToBase64String(before), Convert.ToBase64String(model.Sequence.Save()),
                    "the sequence");
                model.Sequence.Truncate(64);
                Test.Equal(64, model.Sequence.Length(1), "length");
            }
        }

        public static void A_snapshot_is_the_sequence_again()
        {
            using (var model = new Model("int4+hadamard", Rope.Half))
            {
                model.Fill(model.Sequence, 77, 1);
                byte[] snapshot = model.Sequence.Save();
                float[] q = Model.Numbers(Model.QueryRow, 2), one = new float[q.Length], other = new float[q.Length];
                using (Sequence again = model.Cache.Load(snapshot))
                {
                    Test.Equal(77, again.Length(0), "length");
                    Test.Equal(Convert.ToBase64String(snapshot), Convert.ToBase64String(again.Save()), "the snapshot");
                    model.Cache.Attend(0, model.Sequence, q, one);
                    model.Cache.Attend(0, again, q, other);
                    Test.Same(one, other, "attention");
                }
                Test.Refused(Status.Format, "", () => model.Cache.Load(new byte[0]));
                Test.Throws<ArgumentNullException>("snapshot", () => model.Cache.Load(null));
                for (int at = 0; at < snapshot.Length; at += snapshot.Length / 50)
                {
                    var damaged = (byte[])snapshot.Clone();
                    damaged[at] ^= 0x41;
                    Test.Throws<KvqException>("", () => model.Cache.Load(damaged).Dispose());
                }
                using (var larger = new Cache(model.Context, new CacheOptions { NLayers = 2, QHeads = 4, KvHeads = 2,
                    HeadDim = 32 }))
                    Test.Refused(Status.Mismatch, "", () => larger.Load(snapshot));
            }
        }

        public static void Pages_made_ahead_give_room()
        {
            using (var model = new Model())
            {
                model.Sequence.Reserve(100);
                Test.True(model.Sequence.Room(0) >= 100, "room");
                model.Fill(model.Sequence, 10, 1);
                Test.True(model.Sequence.Room(0) >= 90, "room after ten tokens");
                model.Sequence.Reserve(0);
                Test.True(model.Sequence.Room(0) < 32, "room given back");
                Test.Refused(Status.Argument, "tokens", () => model.Sequence.Reserve(-1));
            }
        }

        public static void Compressing_keeps_the_budget()
        {
            const string yaml = "{version: 1, keys: fp16, eviction: {method: streaming, budget: 64, window: 32}}";
            using (var model = new Model(yaml))
            {
                Test.Equal(64, model.Cache.Describe().EvictionBudget, "budget");
                float[] k = model.Fill(model.Sequence, 200, 1).k;
                for (int layer = 0; layer < Model.Layers; ++layer)
                    model.Cache.Attend(layer, model.Sequence, Model.Numbers(Model.QueryRow, 3),
                        new float[Model.QueryRow]);
                ulong before = model.Sequence.Usage().TotalBytes;
                Compressed result = model.Sequence.Compress();
                Test.Equal(before - model.Sequence.Usage().TotalBytes, result.BytesFreed, "bytes freed");
                foreach (int kept in result.Kept) Test.Equal(64, kept, "kept");
                Test.Equal(64, model.Sequence.Slots(0, 1), "slots");
                Test.Equal(200, model.Sequence.Length(0), "length");
                // StreamingLLM: the first four tokens and the newest sixty.
                var positions = new int[64];
                var keys = new float[64 * Model.HeadDim];
                model.Sequence.Decode(0, 0, 0, 64, keys, null, positions);
                for (int i = 0; i < 64; ++i) Test.Equal(i < 4 ? i : 136 + i, positions[i], "position " + i);
                float[] all = Model.Head(k, 0);
                for (int i = 0; i < keys.Length; ++i)
                    Test.Equal(all[positions[i / Model.HeadDim] * Model.HeadDim + i % Model.HeadDim], keys[i], "key " +
                        i);
                Test.Refused(Status.Argument, "budget", () => model.Sequence.Compress(8));
            }
            using (var model = new Model())
                Test.Refused(Status.State, "eviction", () => model.Sequence.Compress());
        }

        public static void Several_sequences_are_appended_to_at_once_or_not_at_all()
        {
            using (var model = new Model())
            using (var other = new Sequence(model.Cache))
            {
                float[] k = Model.Numbers(3 * Model.Row, 1), v = Model.Numbers(3 * Model.Row, 2);
                var batch = new AppendBatch { Sequences = new[] { other, model.Sequence }, TokenCounts = new[] { 1, 2 },
                    K = k, V = v };
                model.Cache.Append(0, batch);
                Test.Equal(1, other.Length(0), "one sequence");
                Test.Equal(2, model.Sequence.Length(0), "the other");
                float[] rest = new float[2 * Model.Row];
                Array.Copy(k, Model.Row, rest, 0, rest.Length);
                Test.Same(Model.Head(rest, 1), Model.Decoded(model.Sequence, 0, 1)[0], "keys");
                batch.Positions = new[] { 5, 9, 8 };
                Test.Refused(Status.Argument, "position", () => model.Cache.Append(0, batch));
                Test.Equal(1, other.Length(0), "length after a failure");
                batch.Positions = new[] { 5, 9, 12 };
                model.Cache.Append(0, batch);
                var positions = new int[4];
                model.Sequence.Decode(0, 0, 0, 4, null, null, positions);
                Test.Equal("0 1 9 12", string.Join(" ", positions), "positions");
                batch.Sequences = new[] { other, other };
                batch.TokenCounts = null;
                batch.Positions = null;
                Test.Refused(Status.Argument, "sequences[1]", () => model.Cache.Append(0, batch));
                Test.Throws<ArgumentException>("TokenCounts has 1 elements", () =>
                {
                    batch.TokenCounts = new[] { 2 };
                    model.Cache.Append(0, batch);
                });
            }
        }

        public static void Policies_and_caches_say_what_they_were_made_with()
        {
            using (var context = new Context(new ContextOptions { NThreads = 2, MaxBytes = 64 << 20 }))
            using (Policy plain = Policy.Load(context, "int4+hadamard"))
            using (Policy evicting = plain.WithEviction(context, "snapkv", 128))
            using (var cache = new Cache(context, Model.Shape(Rope.Interleaved), evicting))
            {
                Test.Equal(0, plain.Describe().EvictionBudget, "budget of a policy without");
                Test.Equal(128, evicting.Describe().EvictionBudget, "budget");
                Test.Refused(Status.Argument, "method", () => plain.WithEviction(context, "guess", 128));
                Test.Refused(Status.Argument, "keys", () => plain.WithLayer(context, 0, 1, "guess"));
                using (Policy mixed = plain.WithLayer(context, 1, 1, null, "gs2"))
                    Test.Equal("version: 1\nkeys: int4+hadamard\nvalues: int4+hadamard\nlayers:\n" +
                               "  - {range: [1, 1], values: gs2}\n", mixed.Save(), "the policy's text");
                ulong bytes = Matrix.PredictBytes("nuq-4", 16, 64, false, out ulong allocated);
                Test.Equal(16UL * 64 / 2 + 16 * 2 + 4 + 64 / 8, bytes, "bytes of a matrix");
                Test.Equal(true, allocated > bytes, "more is allocated");
                Test.Refused(Status.Argument, "rows", () => Matrix.PredictBytes("nuq-4", 0, 64, false, out allocated));
                Usage predicted = cache.PredictUsage(1, 0), found;
                using (new Sequence(cache)) found = cache.Usage();
                Test.Equal(found.TotalBytes, predicted.TotalBytes, "bytes of an empty sequence");
                Test.Refused(Status.Argument, "sequences", () => cache.PredictUsage(0, 1));
                CacheInfo info = cache.Describe();
                Test.Equal("2 4 2 16 Interleaved 16 128", string.Join(" ", info.NLayers, info.QHeads, info.KvHeads,
                    info.HeadDim, info.Rope, info.RotaryDim, info.EvictionBudget), "the cache");
                Test.Near(0.25, info.Scale, 0, "scale");
                Test.Equal("int4+hadamard", cache.DescribeLayer(1).Formats, "formats");
                Test.Equal(1, cache.DescribeLayer(1).NFormats, "number of formats");
                Test.Refused(Status.Argument, "layer", () => cache.DescribeLayer(2));
                ContextInfo described = context.Describe();
                Test.Equal("Cpu 2 cpu", string.Join(" ", described.Device, described.NThreads, described.Backend),
                    "the context");
                Test.Equal(64UL << 20, described.MaxBytes, "limit");
                Test.True(described.Bytes > 0 && described.PeakBytes >= described.Bytes, "bytes");
                Test.Equal(Library.CpuIsas()[0], described.Isa, "instruction set");
                Test.Refused(Status.Unsupported, "", () => context.SetStream(IntPtr.Zero));
            }
            Test.Refused(Status.Limit, "", () => new Context(new ContextOptions { MaxBytes = 1 }));
        }

        public static void Frequencies_of_the_caller_are_used()
        {
            using (var context = new Context())
            {
                CacheOptions options = Model.Shape(Rope.Half);
                options.InvFreq = new float[8]; // all 0: nothing is rotated
                using (var cache = new Cache(context, options))
                using (var sequence = new Sequence(cache))
                {
                    float[] k = Model.Numbers(20 * Model.Row, 1);
                    sequence.Append(0, k, k);
                    Test.Same(Model.Head(k, 1), Model.Decoded(sequence, 0, 1)[0], "keys");
                }
            }
        }
    }
}
