using System;

namespace Kvq.Tests
{
    /// Steps: committed tokens stay, and others are taken back.
    static class StepTests
    {
        /// A sequence of 100 tokens and one of 30, whose pages are sealed as soon as they are full.
        sealed class Conversations : IDisposable
        {
            internal readonly Model Model = new Model("int4");
            internal readonly Sequence A, B;
            internal readonly Sequence[] Both;

            internal Conversations()
            {
                A = Model.Sequence;
                B = new Sequence(Model.Cache);
                Both = new[] { A, B };
                Model.Fill(A, 100, 1);
                Model.Fill(B, 30, 3);
            }

            internal Cache Cache => Model.Cache;

            /// Extends all layers by `n` tokens of each sequence, the same every time.
            internal void Extend(int n, params Sequence[] sequences)
            {
                int rows = n * sequences.Length;
                var batch = new ExtendBatch
                {
                    Sequences = sequences, TokenCounts = Array.ConvertAll(sequences, it => n),
                    K = Model.Numbers(rows * Model.Row, 5), V = Model.Numbers(rows * Model.Row, 6),
                    Q = Model.Numbers(rows * Model.QueryRow, 7), Output = new float[rows * Model.QueryRow],
                };
                for (int layer = 0; layer < Model.Layers; ++layer) Cache.Extend(layer, batch);
            }

            internal void Lengths(int a, int b)
            {
                for (int layer = 0; layer < Model.Layers; ++layer)
                {
                    Test.Equal(a, A.Length(layer), "length of A");
                    Test.Equal(b, B.Length(layer), "length of B");
                }
            }

            public void Dispose()
            {
                B.Dispose();
                Model.Dispose();
            }
        }

        static string Saved(Sequence sequence) => Convert.ToBase64String(sequence.Save());

        public static void Committed_tokens_stay_as_if_no_others_had_been_appended()
        {
            using (var it = new Conversations())
            using (Sequence expected = it.A.Fork())
            {
                string before = Saved(it.B);
                using (Step step = it.Cache.BeginStep(it.Both, 40, 40))
                {
                    it.Extend(40, it.Both);
                    it.Lengths(140, 70);
                    step.Commit(3, 0);
                    Test.True(!step.IsActive, "a commit ends the step");
                }
                float[] k = Model.Numbers(80 * Model.Row, 5), v = Model.Numbers(80 * Model.Row, 6);
                Array.Resize(ref k, 3 * Model.Row);
                Array.Resize(ref v, 3 * Model.Row);
                for (int layer = 0; layer < Model.Layers; ++layer) expected.Append(layer, k, v);
                Test.Equal(Saved(expected), Saved(it.A), "A");
                Test.Equal(before, Saved(it.B), "B");
                using (Step step = it.Cache.BeginStep(it.Both)) // one token each
                {
                    it.Extend(1, it.Both);
                    step.Commit();
                }
                it.Lengths(104, 31);
            }
        }

        public static void A_path_of_a_tree_stays_whose_tokens_see_what_the_mask_says()
        {
            using (var it = new Conversations())
            using (Sequence expected = it.A.Fork())
            using (Step step = it.Cache.BeginStep(new[] { it.A }, 3))
            {
                float[] k = Model.Numbers(3 * Model.Row, 5), v = Model.Numbers(3 * Model.Row, 6);
                float[] q = Model.Numbers(3 * Model.QueryRow, 7), tree = new float[3 * Model.QueryRow];
                var path = new float[2 * Model.QueryRow];
                var batch = new ExtendBatch
                {
                    Sequences = new[] { it.A }, TokenCounts = new[] { 3 }, Positions = new[] { 100, 100, 101 },
                    K = k, V = v, Q = q, Output = tree, Mask = new uint[] { 1, 2, 6 }, MaskSlots = 3,
                };
                var alone = new ExtendBatch
                {
                    Sequences = new[] { expected }, TokenCounts = new[] { 2 }, K = Last(k, 2 * Model.Row),
                    V = Last(v, 2 * Model.Row), Q = Last(q, 2 * Model.QueryRow), Output = path,
                };
                for (int layer = 0; layer < Model.Layers; ++layer)
                {
                    it.Cache.Extend(layer, batch);
                    it.Cache.Extend(layer, alone);
                }
                batch.MaskSlots = 40;
                Test.Throws<ArgumentException>("Mask has 3 elements, expected 6", () => it.Cache.Extend(0, batch));
                step.CommitKept(new[] { 1, 2 });
                Test.Equal(Saved(expected), Saved(it.A), "A");
                float[] inTree = Last(tree, path.Length);
                for (int i = 0; i < path.Length; ++i)
                    Test.True(Math.Abs(inTree[i] - path[i]) < 1e-4f, "the path's output");
            }
        }

        static float[] Last(float[] x, int n)
        {
            var last = new float[n];
            Array.Copy(x, x.Length - n, last, 0, n);
            return last;
        }

        public static void Disposing_aborting_and_exceptions_take_tokens_back()
        {
            using (var it = new Conversations())
            {
                string before = Saved(it.A);
                using (it.Cache.BeginStep(it.Both, 4, 4)) it.Extend(4, it.Both);
                Test.Equal(before, Saved(it.A), "A after Dispose");
                Test.Throws<TimeoutException>("sampler", () =>
                {
                    using (it.Cache.BeginStep(it.Both, 4, 4))
                    {
                        it.Extend(4, it.Both);
                        throw new TimeoutException("the sampler is late");
                    }
                });
                Test.Equal(before, Saved(it.A), "A after an exception");
                Step step = it.Cache.BeginStep(it.Both, 4, 4);
                it.Extend(4, it.Both);
                step.Abort();
                step.Abort(); // has ended, nothing happens
                Test.Throws<InvalidOperationException>("has ended", () => step.Commit());
                Test.Equal(before, Saved(it.A), "A after Abort");
                it.Lengths(100, 30);
            }
        }

        public static void What_a_step_refuses_leaves_it_active()
        {
            using (var it = new Conversations())
            {
                float[] one = new float[Model.Row];
                Test.Wrong("tokenCounts has 1 elements; there are 2", () => it.Cache.BeginStep(it.Both, 1));
                Test.Wrong("sequences is empty", () => it.Cache.BeginStep(new Sequence[0]));
                Test.Refused(Status.Argument, "must be at least 1", () => it.Cache.BeginStep(it.Both, 1, 0));
                using (Step step = it.Cache.BeginStep(it.Both, 2, 2))
                {
                    it.Extend(2, it.Both);
                    Test.Refused(Status.State, "in a step", () => it.A.Truncate(100));
                    Test.Refused(Status.State, "in a step", () => it.A.Fork());
                    Test.Refused(Status.State, "in a step", () => it.A.Save());
                    Test.Refused(Status.State, "in a step", () => it.A.Reserve(64));
                    Test.Refused(Status.State, "in a step", () => it.A.Recode());
                    Test.Refused(Status.State, "in a step", () => it.Cache.Save(it.Both));
                    Test.Refused(Status.State, "in a step already", () => it.Cache.BeginStep(it.Both));
                    Test.Refused(Status.Argument, "the step began with 2 tokens", () => it.A.Append(0, one, one));
                    Test.Refused(Status.Argument, "has received 2 tokens", () => step.Commit(3, 2));
                    Test.Wrong("tokenCounts has 1 elements", () => step.Commit(1));
                    Test.True(step.IsActive, "a refused step goes on");
                    step.Commit(1, 2);
                }
                it.Lengths(101, 32);
                using (Step step = it.Cache.BeginStep(it.Both))
                {
                    it.A.Append(0, one, one);
                    Test.Refused(Status.State, "cannot keep all tokens", () => step.Commit());
                }
                it.Lengths(101, 32);
            }
        }

        public static void A_sequence_may_be_disposed_of_inside_a_step()
        {
            using (var it = new Conversations())
            {
                Step step = it.Cache.BeginStep(it.Both, 2, 2);
                it.Extend(2, it.Both);
                it.B.Dispose();
                Test.Throws<ObjectDisposedException>("Sequence", () => step.Commit());
                step.Dispose();
                Test.Equal(100, it.A.Length(0), "length of A");
                step = it.Cache.BeginStep(new[] { it.A });
                it.A.Dispose();
                step.Abort();
                Test.True(!step.IsActive, "a step of no sequences has ended");
            }
        }
    }
}
