using System;
using System.Threading;
using Kvq.Raw;

namespace Kvq.Tests
{
    /// Objects may be disposed of in any order, twice, or never.
    static class ObjectTests
    {
        public static void Use_after_Dispose_is_ObjectDisposedException()
        {
            var model = new Model("int4");
            float[] row = new float[Model.Row], q = new float[Model.QueryRow];
            var gone = new Sequence(model.Cache);
            gone.Dispose();
            gone.Dispose();
            Test.True(gone.IsClosed, "closed");
            Action[] calls =
            {
                () => gone.Append(0, row, row), () => gone.Length(0), () => gone.Slots(0, 0), () => gone.Room(0),
                () => gone.Reserve(1), () => gone.Truncate(0), () => gone.Fork(), () => gone.Save(), () => gone.Usage(),
                () => gone.Compress(), () => gone.Decode(0, 0, 0, 1, null, null), () => gone.Recode(),
                () => gone.PredictRecode(), () => gone.DescribeLayer(0), () => model.Cache.Save(model.Sequence, gone),
                () => model.Cache.Attend(0, gone, q, new float[q.Length]),
                () => model.Cache.Attend(0, new AttendBatch { Sequences = new[] { model.Sequence, gone },
                                                              Q = new float[2 * q.Length],
                                                              Output = new float[2 * q.Length] }),
                () => model.Cache.Append(0, new AppendBatch { Sequences = new[] { gone }, K = row, V = row }),
            };
            foreach (Action call in calls) Test.Throws<ObjectDisposedException>("Sequence", call);
            model.Sequence.Append(0, row, row); // nothing of a call that failed holds it
            model.Cache.Dispose();
            Action[] onCache =
            {
                () => model.Cache.Attend(0, model.Sequence, q, new float[q.Length]), () => model.Cache.Usage(),
                () => model.Cache.DescribeLayer(0), () => new Sequence(model.Cache),
                () => model.Cache.Load(new byte[9]), () => model.Cache.LoadSequence(new byte[9]),
                () => model.Cache.DescribeSnapshot(new byte[9]), () => model.Cache.Save(model.Sequence),
            };
            foreach (Action call in onCache) Test.Throws<ObjectDisposedException>("Cache", call);
            model.Context.Dispose();
            Test.Throws<ObjectDisposedException>("Context", () => model.Context.Describe());
            Test.Throws<ObjectDisposedException>("Context", () => Policy.Load(model.Context, "int4"));
            Test.Throws<ObjectDisposedException>("Context", () => Matrix.Load(model.Context, new byte[9], "w"));
            using (var context = new Context())
            {
                Policy policy = Policy.Load(context, "int4");
                policy.Dispose();
                Test.Throws<ObjectDisposedException>("Policy", () => policy.Describe());
                Test.Throws<ObjectDisposedException>("Policy", () => policy.WithEviction(context, "snapkv", 128));
                CacheOptions shape = Model.Shape(Rope.Half);
                Test.Throws<ObjectDisposedException>("Policy", () => new Cache(context, shape, policy));
                Matrix matrix = Matrix.Quantize(context, new float[64 * 64], 64, 64);
                matrix.Dispose();
                Test.Throws<ObjectDisposedException>("Matrix", () => matrix.Linear(new float[64], new float[64]));
                Test.Throws<ObjectDisposedException>("Matrix", () => matrix.Dequantize(0, 1));
                Test.Throws<ObjectDisposedException>("Matrix", () => Matrix.Save(new[] { matrix }, new[] { "w" }));
            }
            model.Sequence.Append(0, row, row); // and a sequence outlives its cache and context
            Test.Equal(2, model.Sequence.Length(0), "length");
            Test.Equal(2, model.Sequence.Fork().Length(0), "length of a fork");
            model.Dispose();
        }

        public static void What_was_never_disposed_of_is_destroyed_by_finalizers()
        {
            int released = 0;
            Forget(20, () => Interlocked.Increment(ref released));
            GC.Collect();
            GC.WaitForPendingFinalizers();
            Test.True(released > 10, released + " contexts of 20 were destroyed");
        }

        static void Forget(int n, Action released)
        {
            // Mono's collector takes what it finds on stacks for references, so one or the other may stay.
            var thread = new Thread(() =>
            {
                for (int i = 0; i < n; ++i)
                {
                    var model = new Model("int4", Rope.Half, new ContextOptions { Released = released });
                    model.Fill(model.Sequence, 3, 1);
                }
            });
            thread.Start();
            thread.Join();
        }

        public static void Disposing_of_a_handle_disposes_of_its_object()
        {
            using (var model = new Model("int4"))
            {
                model.Fill(model.Sequence, 3, 1);
                float[] q = new float[Model.QueryRow];
                model.Sequence.Handle.Dispose();
                model.Sequence.Handle.Close();
                Test.True(model.Sequence.IsClosed && model.Sequence.Handle.IsClosed, "closed");
                Test.Throws<ObjectDisposedException>("Sequence", () => model.Sequence.Length(0));
                Test.Throws<ObjectDisposedException>("Sequence", () =>
                    model.Cache.Attend(0, model.Sequence, q, new float[q.Length]));
                model.Cache.Handle.Dispose();
                Test.Throws<ObjectDisposedException>("Cache", () => model.Cache.Usage());
                model.Context.Handle.Dispose();
                Test.Throws<ObjectDisposedException>("Context", () => model.Context.Describe());
            }
        }

        public static void A_call_that_uses_an_object_is_finished_before_it_is_destroyed()
        {
            FinishedBefore(context => context.Dispose());
            FinishedBefore(context => context.Handle.Dispose());
        }

        static void FinishedBefore(Action<Context> dispose)
        {
            var begun = new ManualResetEvent(false);
            var disposed = new ManualResetEvent(false);
            Matrix made = null;
            using (var context = new Context())
            {
                var options = new QuantizeOptions
                {
                    Progress = done =>
                    {
                        begun.Set();
                        return disposed.WaitOne(10000);
                    },
                };
                var thread = new Thread(() => made = Matrix.Quantize(context, Model.Numbers(64 * 64, 1), 64, 64,
                    options));
                thread.Start();
                Test.True(begun.WaitOne(10000), "the call began");
                dispose(context);
                disposed.Set();
                thread.Join();
            }
            Test.Equal(64L, made.Describe().Rows, "rows of what the call made");
            made.Dispose();
        }

        public static void Handles_of_the_raw_layer_are_the_objects()
        {
            using (var model = new Model())
            {
                IntPtr cache = Native.kvq_sequence_cache(model.Sequence.Handle.DangerousGetHandle());
                Test.Equal(model.Cache.Handle.DangerousGetHandle(), cache, "the sequence's cache");
                Test.Equal(model.Context.Handle.DangerousGetHandle(), Native.kvq_cache_context(cache), "its context");
            }
        }

        public static unsafe void Errors_carry_status_name_code_and_message()
        {
            using (var context = new Context())
            {
                KvqException error = Test.Throws<KvqException>("KVQ_E_FORMAT: ", () => Policy.Load(context, "int5"));
                Test.Equal(Status.Format, error.Status, "status");
                Test.Equal("KVQ_E_FORMAT", error.StatusName, "name");
                Test.Equal(0, error.BackendCode, "backend code");
                Test.Refused(Status.Unsupported, "abacus", () => new Context(new ContextOptions { CpuIsa = "abacus" }));
            }
            var raw = default(kvq_error);
            Native.kvq_error_init(&raw, (UIntPtr)sizeof(kvq_error));
            Test.Equal((uint)sizeof(kvq_error), raw.struct_size, "struct_size");
            Test.Equal("unknown status", Library.StatusName((Status)99), "the name of no status");
        }
    }
}
