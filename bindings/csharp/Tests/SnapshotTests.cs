using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Kvq.Tests
{
    /// Sequences with another policy than their cache's, and snapshots of several of them.
    static class SnapshotTests
    {
        /// A sequence of 300 tokens in gs4, a fork of it with 40 more, a cache to load into, and a policy.
        sealed class Conversations : IDisposable
        {
            internal readonly Model Model = new Model("gs4");
            internal readonly Sequence Parent, Fork;
            internal readonly Cache Other;
            internal readonly Policy Small;

            internal Conversations()
            {
                Parent = Model.Sequence;
                Model.Fill(Parent, 300, 1);
                Parent.Reserve(0); // finds its scales, so that both share sealed pages
                Fork = Parent.Fork();
                Model.Fill(Fork, 40, 5);
                using (Policy same = Policy.Load(Model.Context, "gs4"))
                    Other = new Cache(Model.Context, Model.Shape(Rope.None), same);
                Small = Policy.Load(Model.Context, "gs2");
            }

            internal Cache Cache => Model.Cache;

            public void Dispose()
            {
                Small.Dispose();
                Other.Dispose();
                Fork.Dispose();
                Model.Dispose();
            }
        }

        static string Saved(Sequence sequence) => Convert.ToBase64String(sequence.Save());

        static void Free(Sequence[] sequences)
        {
            foreach (Sequence one in sequences) one.Dispose();
        }

        static void SameTokens(Sequence expected, Sequence found)
        {
            for (int layer = 0; layer < Model.Layers; ++layer)
            {
                Test.Equal(expected.Length(layer), found.Length(layer), "length");
                float[][] tokens = Model.Decoded(expected, layer, 1), others = Model.Decoded(found, layer, 1);
                Test.Same(tokens[0], others[0], "keys");
                Test.Same(tokens[1], others[1], "values");
            }
        }

        public static void Recoding_takes_the_memory_that_was_predicted()
        {
            using (var it = new Conversations())
            using (Sequence alone = it.Cache.LoadSequence(it.Parent.Save()))
            {
                Usage before = alone.Usage();
                RecodeInfo predicted = alone.PredictRecode(it.Small);
                Test.True(predicted.Pages > 0, "pages are written anew");
                Test.Equal(before.TotalBytes, predicted.BytesBefore, "bytes before");
                alone.Recode(it.Small);
                Usage after = alone.Usage();
                Test.Equal(predicted.BytesAfter, after.TotalBytes, "bytes after");
                Test.True(after.TotalBytes < before.TotalBytes, "it is smaller");
                Test.True(after.SealedBytes < before.SealedBytes, "sealed pages are smaller");
                string formats = it.Cache.DescribeLayer(1).Formats;
                Test.True(alone.DescribeLayer(1).Formats != formats, "other formats");

                string fork = Saved(it.Fork);
                it.Parent.Recode(it.Small);
                Test.Equal(fork, Saved(it.Fork), "the fork");
                it.Parent.Recode();
                Test.Equal(formats, it.Parent.DescribeLayer(1).Formats, "formats of the cache");
                Test.Equal(0L, it.Parent.PredictRecode().Pages, "pages to write anew");
            }
        }

        public static void A_refused_recoding_changes_nothing()
        {
            using (var it = new Conversations())
            using (Policy evicting = Policy.Load(it.Model.Context, "gs2+snapkv:64"))
            {
                string before = Saved(it.Parent);
                Test.Refused(Status.Argument, "evicts otherwise", () => it.Parent.Recode(evicting));
                Test.Refused(Status.Argument, "evicts otherwise", () => it.Parent.PredictRecode(evicting));
                Test.Refused(Status.Argument, "layer is 2", () => it.Parent.DescribeLayer(2));
                it.Small.Dispose();
                Test.Throws<ObjectDisposedException>("Policy", () => it.Parent.Recode(it.Small));
                Test.Throws<ObjectDisposedException>("Policy", () => it.Other.Load(new byte[9], it.Small));
                Test.Equal(before, Saved(it.Parent), "the sequence");
                it.Parent.Reserve(64); // nothing of a call that failed holds it
                Test.Refused(Status.State, "preallocated", () => it.Parent.Recode());
            }
        }

        public static void A_sequence_and_its_fork_share_pages_again_where_they_are_loaded()
        {
            using (var it = new Conversations())
            {
                byte[] snapshot = it.Cache.Save(it.Parent, it.Fork);
                Test.True(snapshot.Length < it.Parent.Save().Length + it.Fork.Save().Length, "pages are written once");
                SnapshotInfo info = it.Other.DescribeSnapshot(snapshot);
                Test.Equal(2, info.NSequences, "sequences");
                Test.Equal(340, info.Tokens, "tokens");
                Test.Equal(0L, info.RecodedPages, "recoded pages");
                Sequence[] loaded = it.Other.Load(snapshot);
                Test.Equal(it.Cache.Usage().SharedPages, it.Other.Usage().SharedPages, "shared pages");
                Test.True(it.Other.Usage().SharedPages > 0, "pages are shared");
                SameTokens(it.Parent, loaded[0]);
                SameTokens(it.Fork, loaded[1]);
                Test.Equal(Convert.ToBase64String(snapshot), Convert.ToBase64String(it.Other.Save(loaded)), "snapshot");
                Test.Equal(Saved(it.Parent), Convert.ToBase64String(it.Cache.Save(it.Parent)), "snapshot of one");
                it.Other.Dispose();
                Test.Equal(340, loaded[1].Length(1), "length of a sequence whose cache is gone");
                Free(loaded);
            }
        }

        public static void Other_formats_are_refused_unless_pages_may_be_recoded()
        {
            using (var it = new Conversations())
            {
                byte[] snapshot = it.Cache.Save(it.Parent, it.Fork);
                Test.Refused(Status.Mismatch, "", () => it.Other.Load(snapshot, it.Small));
                Test.Refused(Status.Mismatch, "", () => it.Other.DescribeSnapshot(snapshot, it.Small));
                Test.True(it.Other.Usage().SealedPages == 0, "nothing is left of what was refused");
                SnapshotInfo info = it.Other.DescribeSnapshot(snapshot, it.Small, recode: true);
                Test.True(info.RecodedPages > 0, "pages are recoded");
                Sequence[] loaded = it.Other.Load(snapshot, it.Small, recode: true);
                Test.True(it.Other.Usage().SharedPages > 0, "pages are shared");
                Test.True(loaded[0].Usage().SealedBytes < it.Parent.Usage().SealedBytes, "pages are smaller");
                it.Parent.Recode(it.Small);
                SameTokens(it.Parent, loaded[0]);
                Free(loaded);
            }
        }

        public static void Wrong_sequences_and_snapshots_are_refused()
        {
            using (var it = new Conversations())
            {
                byte[] snapshot = it.Cache.Save(it.Parent, it.Fork);
                Test.Refused(Status.Argument, "twice", () => it.Cache.Save(it.Parent, it.Parent));
                Test.Wrong("sequences is empty", () => it.Cache.Save());
                Test.Throws<ArgumentNullException>("sequences", () => it.Cache.Save(null));
                Test.Throws<ArgumentNullException>("sequences[1]", () => it.Cache.Save(it.Parent, null));
                Test.Refused(Status.Argument, "sequences[0] belongs to another cache", () => it.Other.Save(it.Parent));
                Test.Refused(Status.Mismatch, "snapshot has 2 sequences", () => it.Other.LoadSequence(snapshot));
                Test.Refused(Status.Format, "", () => it.Other.Load(new byte[0]));
                Test.Refused(Status.Format, "", () => it.Other.DescribeSnapshot(new byte[40]));
                Test.Throws<ArgumentNullException>("snapshot", () => it.Other.Load(null));
                Test.Throws<ArgumentNullException>("snapshot", () => it.Other.DescribeSnapshot(null));
            }
        }

        public static void An_allocator_that_throws_at_any_time_leaves_no_sequences()
        {
            var starts = new Dictionary<IntPtr, IntPtr>();
            int left = -1;
            var options = new ContextOptions
            {
                Allocate = (bytes, alignment) =>
                {
                    if (left-- == 0) throw new OutOfMemoryException("the hook's own");
                    IntPtr start = Marshal.AllocHGlobal((IntPtr)(bytes + alignment));
                    var aligned = (IntPtr)(((long)start + alignment - 1) / alignment * alignment);
                    starts.Add(aligned, start);
                    return aligned;
                },
                Free = (pointer, bytes, alignment) =>
                {
                    Marshal.FreeHGlobal(starts[pointer]);
                    starts.Remove(pointer);
                },
            };
            using (var it = new Conversations())
            using (var model = new Model("gs2", Rope.None, options))
            {
                byte[] snapshot = it.Cache.Save(it.Parent, it.Fork);
                Free(model.Cache.Load(snapshot, recode: true));
                int before = starts.Count, failures = 0;
                Sequence[] loaded = null;
                for (; loaded == null; ++failures)
                {
                    left = failures;
                    try
                    {
                        loaded = model.Cache.Load(snapshot, recode: true);
                    }
                    catch (OutOfMemoryException) // also where the library does without the memory
                    {
                        Test.Equal(before, starts.Count, "blocks after a failure");
                    }
                }
                left = -1;
                Test.True(failures > 10, "many allocations fail");
                Test.Equal(340, loaded[1].Length(1), "length");
                Free(loaded);
            }
        }
    }
}
