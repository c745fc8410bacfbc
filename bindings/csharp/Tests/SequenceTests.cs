using System;

namespace Kvq.Tests
{
    static class SequenceTests
    {
        public static void Lengths_slots_room_and_decoded_tokens_are_what_was_appended()
        {
            using (var model = new Model())
            {
                model.Sequence.Reserve(40);
                int room = model.Sequence.Room(1);
                var (k, v) = model.Fill(model.Sequence, 40, 1);
                Test.Equal(room - 40, model.Sequence.Room(1), "room");
                Test.Equal(40, model.Sequence.Length(1), "length");
                Test.Equal(40, model.Sequence.Slots(1, 1), "slots");
                Test.Same(Model.Head(k, 1), Model.Decoded(model.Sequence, 1, 1)[0], "keys");
                Test.Same(Model.Head(v, 0), Model.Decoded(model.Sequence, 1, 0)[1], "values");
                Test.Equal(2L * 40 * Model.Row * Model.Layers, model.Sequence.Usage().Scalars, "scalars");
            }
        }

        public static void Forks_are_cut_saved_and_loaded_and_leave_their_parent_as_it_is()
        {
            using (var model = new Model("int4"))
            {
                model.Fill(model.Sequence, 100, 1);
                byte[] before = model.Sequence.Save();
                using (Sequence fork = model.Sequence.Fork())
                {
                    Test.True(model.Cache.Usage().SharedPages > 0, "pages are shared");
                    fork.Truncate(64);
                    model.Fill(fork, 2, 5);
                    Test.Equal(66, fork.Length(0), "length of the fork");
                    Test.Refused(Status.State, "32", () => fork.Truncate(50));
                    byte[] snapshot = fork.Save();
                    using (Sequence again = model.Cache.LoadSequence(snapshot))
                        Test.Equal(Convert.ToBase64String(snapshot), Convert.ToBase64String(again.Save()), "the fork");
                }
                Test.Equal(Convert.ToBase64String(before), Convert.ToBase64String(model.Sequence.Save()), "the parent");
                Test.Refused(Status.Format, "", () => model.Cache.LoadSequence(new byte[0]));
                Test.Throws<ArgumentNullException>("snapshot", () => model.Cache.LoadSequence(null));
            }
        }

        public static void Compressing_keeps_the_budget()
        {
            const string yaml = "{version: 1, keys: fp16, eviction: {method: streaming, budget: 64, window: 32}}";
            using (var model = new Model(yaml))
            {
                Test.Equal(64, model.Cache.Describe().EvictionBudget, "budget");
                model.Fill(model.Sequence, 200, 1);
                ulong before = model.Sequence.Usage().TotalBytes;
                Compressed result = model.Sequence.Compress();
                Test.Equal(before - model.Sequence.Usage().TotalBytes, result.BytesFreed, "bytes freed");
                foreach (int kept in result.Kept) Test.Equal(64, kept, "kept");
                Test.Equal(64, model.Sequence.Slots(0, 1), "slots");
                Test.Equal(200, model.Sequence.Length(0), "length");
                Test.Refused(Status.Argument, "budget", () => model.Sequence.Compress(-1));
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
                Test.Refused(Status.Argument, "keys", () => plain.WithLayer(context, 0, 1, "guess"));
                using (Policy mixed = plain.WithLayer(context, 1, 1, null, "gs2"))
                    Test.Equal("version: 1\nkeys: int4+hadamard\nvalues: int4+hadamard\nlayers:\n" +
                               "  - {range: [1, 1], values: gs2}\n", mixed.Save(), "the policy's text");
                ulong bytes = Matrix.PredictBytes("nuq-4", 16, 64, false, out ulong allocated);
                Test.Equal(16UL * 64 / 2 + 16 * 2 + 4 + 64 / 8, bytes, "bytes of a matrix");
                Test.Equal(true, allocated > bytes, "more is allocated");
                Usage predicted = cache.PredictUsage(1, 0), found;
                using (new Sequence(cache)) found = cache.Usage();
                ulong held = predicted.TotalBytes - predicted.TransientBytes;
                Test.Equal(found.TotalBytes, held, "bytes of an empty sequence");
                Test.True(predicted.TransientBytes > 0, "eviction has room of its own");
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
