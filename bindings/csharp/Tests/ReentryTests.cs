using System;
using System.Runtime.InteropServices;
using System.Threading;
using System.Threading.Tasks;

namespace Kvq.Tests
{
    /// Hooks that use objects, which would wait for themselves.
    static class ReentryTests
    {
        /// Attends with a hook that does something with the model, in at most ten seconds.
        static Exception Attended(Action<Model> inHook)
        {
            Model model = null;
            var options = new ContextOptions
            {
                ParallelFor = (n, body) =>
                {
                    if (model != null) inHook(model);
                },
            };
            using (var made = new Model("int4", Rope.Half, options))
            {
                made.Fill(made.Sequence, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2);
                Exception thrown = null;
                model = made;
                var thread = new Thread(() =>
                {
                    try
                    {
                        made.Cache.Attend(0, made.Sequence, q, new float[q.Length]);
                    }
                    catch (Exception exception)
                    {
                        thrown = exception;
                    }
                });
                thread.IsBackground = true;
                thread.Start();
                Test.True(thread.Join(10000), "the call ends");
                model = null;
                return thrown;
            }
        }

        static void Refused(string name, Action<Model> inHook)
        {
            Exception thrown = Attended(inHook);
            if (thrown is AggregateException) thrown = thrown.InnerException;
            Test.True(thrown is InvalidOperationException, "thrown is " + thrown);
            Test.True(thrown.Message.Contains("A hook may not use the " + name), thrown.Message);
        }

        public static void A_hook_that_uses_an_object_of_its_context_is_told_so()
        {
            float[] k = new float[Model.Row];
            Refused("Sequence", model => model.Sequence.Append(0, k, k));
            Refused("Sequence", model => model.Sequence.Length(0));
            Refused("Cache", model => model.Cache.Usage());
            Refused("Cache", model => new Sequence(model.Cache));
            Refused("Context", model => model.Context.Describe());
        }

        public static void So_are_threads_and_tasks_that_it_starts()
        {
            float[] k = new float[Model.Row];
            Refused("Sequence", model => Task.Run(() => model.Sequence.Append(0, k, k)).Wait());
            Refused("Sequence", model => Parallel.For(0, 2, i => model.Sequence.Append(0, k, k)));
            Exception thrown = null;
            Test.Equal(null, Attended(model =>
            {
                var thread = new Thread(() =>
                {
                    try
                    {
                        model.Sequence.Append(0, k, k);
                    }
                    catch (InvalidOperationException exception)
                    {
                        thrown = exception;
                    }
                });
                thread.Start();
                thread.Join();
            }), "exception of the call");
            Test.True(thrown != null, "the thread was told");
        }

        public static void A_thread_that_outlives_its_hook_may_use_the_objects()
        {
            var over = new ManualResetEvent(false);
            Task<int> late = null;
            Model used = null;
            var options = new ContextOptions
            {
                ParallelFor = (n, body) =>
                {
                    if (late == null && used != null)
                        late = Task.Run(() =>
                        {
                            over.WaitOne();
                            return used.Sequence.Length(0);
                        });
                },
            };
            using (used = new Model("int4", Rope.Half, options))
            {
                used.Fill(used.Sequence, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2);
                used.Cache.Attend(0, used.Sequence, q, new float[q.Length]);
                over.Set();
                Test.Equal(300, late.Result, "length");
            }
        }

        public static void A_hook_may_use_another_context_and_dispose_of_objects()
        {
            using (var other = new Model("int4"))
            {
                Exception thrown = Attended(model => other.Fill(other.Sequence, 1, 1));
                Test.Equal(null, thrown, "exception");
                Test.True(other.Sequence.Length(0) > 0, "appended");
            }
            Test.Equal(null, Attended(model => model.Sequence.Dispose()), "exception");
            Test.Equal(null, Attended(model => model.Context.Dispose()), "exception");
            Model first = null;
            var released = new ManualResetEvent(false);
            var options = new ContextOptions { Released = () => released.Set() };
            options.ParallelFor = (n, body) =>
            {
                if (first != null) first.Sequence.Dispose(); // not in use: another thread destroys it
            };
            var made = new Model("int4", Rope.Half, options);
            using (var attended = new Sequence(made.Cache))
            {
                made.Fill(attended, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2);
                first = made;
                made.Cache.Attend(0, attended, q, new float[q.Length]);
                Test.True(made.Sequence.IsClosed, "closed");
            }
            made.Dispose();
            Test.True(released.WaitOne(10000), "everything is destroyed");
        }

        public static void A_progress_hook_may_not_use_its_context()
        {
            using (var context = new Context())
            {
                var options = new QuantizeOptions
                {
                    Progress = done =>
                    {
                        context.Describe();
                        return true;
                    },
                };
                Test.Throws<InvalidOperationException>("A hook may not use the Context", () =>
                    Matrix.Quantize(context, Model.Numbers(64 * 64, 1), 64, 64, options));
                context.Describe();
            }
        }

        public static void An_allocator_may_not_use_its_context()
        {
            Model model = null;
            var options = new ContextOptions
            {
                Allocate = (bytes, alignment) =>
                {
                    if (model != null) model.Sequence.Length(0);
                    return Marshal.AllocHGlobal((IntPtr)bytes);
                },
                Free = (pointer, bytes, alignment) => Marshal.FreeHGlobal(pointer),
            };
            using (var made = new Model("fp16", Rope.None, options))
            {
                model = made;
                float[] k = new float[Model.Row];
                Test.Throws<InvalidOperationException>("A hook may not use the Sequence",
                                                       () => made.Sequence.Append(0, k, k));
                model = null;
            }
        }
    }
}
