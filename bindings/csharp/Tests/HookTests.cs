using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;

namespace Kvq.Tests
{
    static class HookTests
    {
        sealed class Memory
        {
            readonly Dictionary<IntPtr, IntPtr> starts = new Dictionary<IntPtr, IntPtr>();
            internal long Bytes;
            internal bool Fail, Throw;

            internal ContextOptions Options => new ContextOptions { Allocate = Allocate, Free = Free };

            IntPtr Allocate(long bytes, long alignment)
            {
                if (Throw) throw new OutOfMemoryException("the hook's own");
                if (Fail) return IntPtr.Zero;
                IntPtr start = Marshal.AllocHGlobal((IntPtr)(bytes + alignment));
                var aligned = (IntPtr)(((long)start + alignment - 1) / alignment * alignment);
                lock (starts)
                {
                    starts.Add(aligned, start);
                    Bytes += bytes;
                }
                return aligned;
            }

            void Free(IntPtr pointer, long bytes, long alignment)
            {
                lock (starts)
                {
                    Marshal.FreeHGlobal(starts[pointer]);
                    starts.Remove(pointer);
                    Bytes -= bytes;
                }
            }
        }

        public static void An_allocator_gets_every_byte_and_gets_it_back()
        {
            var memory = new Memory();
            int released = 0;
            ContextOptions options = memory.Options;
            options.Released = () => ++released;
            var model = new Model("int4", Rope.Half, options);
            GC.Collect(); // the delegates live
            model.Fill(model.Sequence, 100, 1);
            Test.Equal((ulong)memory.Bytes, model.Context.Describe().Bytes, "bytes");
            model.Context.Dispose();
            model.Cache.Dispose();
            GC.Collect();
            Test.Equal(0, released, "released while a sequence lives");
            model.Sequence.Dispose();
            Test.Equal(0L, memory.Bytes, "bytes at the end");
            Test.Equal(1, released, "released");
        }

        public static void An_allocator_that_fails_or_throws_fails_the_call_alone()
        {
            var memory = new Memory();
            using (var model = new Model("int4", Rope.Half, memory.Options))
            {
                model.Fill(model.Sequence, 10, 1);
                byte[] before = model.Sequence.Save();
                float[] k = new float[200 * Model.Row];
                memory.Fail = true;
                Test.Refused(Status.Memory, "", () => model.Sequence.Append(0, k, k));
                memory.Fail = false;
                memory.Throw = true;
                Test.Throws<OutOfMemoryException>("the hook's own", () => model.Sequence.Append(0, k, k));
                Test.Throws<OutOfMemoryException>("the hook's own", () => new Sequence(model.Cache));
                memory.Throw = false;
                Test.Equal(Convert.ToBase64String(before), Convert.ToBase64String(model.Sequence.Save()),
                    "the sequence");
                model.Sequence.Append(0, k, k);
            }
            Test.Equal(0L, memory.Bytes, "bytes at the end");
        }

        /// Counts the hooks of twenty contexts, made and forgotten. Mono's collector takes what it finds on stacks for
        /// references, so one or the other may stay.
        static void LetGo(Action<Memory> use)
        {
            var weak = new WeakReference[20];
            var thread = new Thread(() =>
            {
                for (int i = 0; i < weak.Length; ++i)
                {
                    var memory = new Memory();
                    weak[i] = new WeakReference(memory);
                    use(memory);
                }
            });
            thread.Start();
            thread.Join();
            GC.Collect();
            GC.WaitForPendingFinalizers();
            GC.Collect();
            int alive = Array.FindAll(weak, one => one.IsAlive).Length;
            Test.True(alive < weak.Length / 2, alive + " of " + weak.Length + " hooks are held");
        }

        public static void Hooks_may_go_when_their_context_is_gone_or_could_not_be_created()
        {
            LetGo(memory => new Context(memory.Options).Dispose());
            LetGo(memory =>
            {
                memory.Throw = true;
                Test.Throws<OutOfMemoryException>("", () => new Context(memory.Options));
            });
        }

        public static void An_allocator_comes_with_both_halves()
        {
            var allocates = new ContextOptions { Allocate = (bytes, alignment) => IntPtr.Zero };
            var frees = new ContextOptions { DeviceFree = (pointer, bytes, stream) => { } };
            Test.Wrong("Free is null but Allocate is not", () => new Context(allocates));
            Test.Wrong("DeviceAllocate is null", () => new Context(frees));
        }

        public static void Messages_arrive_and_what_the_log_throws_is_thrown_by_the_call()
        {
            var messages = new List<string>();
            var options = new ContextOptions
            {
                Log = (level, message) =>
                {
                    lock (messages) messages.Add(level + " " + message);
                },
            };
            using (new Model("fp16", Rope.Half, options)) { }
            Test.True(messages.Count > 0 && messages[0].StartsWith("Info ") && messages[0].Length > 5, "a message");
            options.Log = (level, message) => throw new FormatException("no paper");
            Test.Throws<FormatException>("no paper", () => new Context(options));
        }

        static float[] Attended(ContextOptions options)
        {
            using (var model = new Model("int4+hadamard", Rope.Half, options))
            {
                model.Fill(model.Sequence, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2), output = new float[q.Length];
                model.Cache.Attend(1, model.Sequence, q, output);
                return output;
            }
        }

        public static void Loops_run_on_the_callers_threads_and_results_do_not_depend_on_them()
        {
            float[] expected = Attended(null);
            int bodies = 0, loops = 0;
            var options = new ContextOptions
            {
                ParallelFor = (n, body) =>
                {
                    ++loops;
                    var threads = new Thread[2];
                    int next = -1;
                    for (int t = 0; t < threads.Length; ++t)
                    {
                        threads[t] = new Thread(() =>
                        {
                            for (int i = Interlocked.Increment(ref next); i < n; i = Interlocked.Increment(ref next))
                            {
                                body(i);
                                Interlocked.Increment(ref bodies);
                            }
                        });
                        threads[t].Start();
                    }
                    foreach (Thread thread in threads) thread.Join();
                },
            };
            Test.Same(expected, Attended(options), "attention");
            Test.True(loops > 0 && bodies > loops, "loops came to the hook");

            options.ParallelFor = (n, body) =>
            {
                for (int i = n - 1; i > n / 2; --i) body(i);
            };
            Test.Same(expected, Attended(options), "attention by half a loop");
        }

        public static void What_a_loop_throws_is_thrown_after_the_call_has_done_its_work()
        {
            Action<int> kept = null;
            var options = new ContextOptions { ParallelFor = (n, body) => kept = body };
            float[] expected = Attended(null);
            Test.Same(expected, Attended(options), "attention without a loop");
            Test.Throws<InvalidOperationException>("the loop is over", () => kept(0));
            Test.Throws<ArgumentOutOfRangeException>("", () => kept(-1));
            bool fail = false;
            options.ParallelFor = (n, body) =>
            {
                body(0);
                if (fail) throw new TimeoutException("too slow");
            };
            using (var model = new Model("int4+hadamard", Rope.Half, options))
            {
                model.Fill(model.Sequence, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2), output = new float[q.Length];
                fail = true;
                Test.Throws<TimeoutException>("too slow", () => model.Cache.Attend(1, model.Sequence, q, output));
                fail = false;
                Test.Same(expected, output, "attention");
            }
        }

        public static void What_a_hook_throws_is_thrown_by_the_call_that_ran_it_alone()
        {
            int freed = 0;
            Thread cutting = null;
            Sequence other = null;
            int length = -1;
            Exception stolen = null;
            var memory = new Memory();
            ContextOptions options = memory.Options;
            Action<IntPtr, long, long> free = options.Free;
            options.Free = (pointer, bytes, alignment) =>
            {
                free(pointer, bytes, alignment);
                if (Thread.CurrentThread != cutting) return;
                if (++freed == 1) throw new TimeoutException("too slow");
                if (freed > 2) return;
                var thread = new Thread(() =>
                {
                    try
                    {
                        length = other.Length(0);
                    }
                    catch (Exception exception)
                    {
                        stolen = exception;
                    }
                });
                using (ExecutionContext.SuppressFlow()) thread.Start(); // a stranger to the hook
                thread.Join();
            };
            using (var model = new Model("int4", Rope.Half, options))
            using (other = new Sequence(model.Cache))
            {
                model.Fill(model.Sequence, 300, 1);
                cutting = Thread.CurrentThread;
                Test.Throws<TimeoutException>("too slow", () => model.Sequence.Truncate(0));
                cutting = null;
                Test.True(freed > 1, "memory was freed twice");
                Test.Equal(null, stolen, "what the other call throws");
                Test.Equal(0, length, "length of the other sequence");
                Test.Equal(0, model.Sequence.Length(0), "length");
            }
            Test.Equal(0L, memory.Bytes, "bytes at the end");
        }

        public static void What_Released_throws_is_thrown_by_Dispose()
        {
            var context = new Context(new ContextOptions { Released = () => throw new TimeoutException("late") });
            Test.Throws<TimeoutException>("late", context.Dispose);
            context.Dispose();
        }
    }
}
