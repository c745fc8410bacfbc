using System;
using System.Runtime.InteropServices;
using System.Threading;

namespace Kvq.Tests
{
    static class ThreadTests
    {
        static void AtOnce(int n, Action<int> body)
        {
            var threads = new Thread[n];
            Exception first = null;
            for (int t = 0; t < n; ++t)
            {
                int index = t;
                threads[t] = new Thread(() =>
                {
                    try
                    {
                        body(index);
                    }
                    catch (Exception exception)
                    {
                        Interlocked.CompareExchange(ref first, exception, null);
                    }
                });
                threads[t].Start();
            }
            foreach (Thread thread in threads) thread.Join();
            if (first != null) throw first;
        }

        public static void Two_readers_are_inside_at_once_and_a_writer_alone()
        {
            // Each loop of an attend waits for the other one's: they can only meet inside the library.
            var both = new Barrier(2);
            bool meet = false;
            var options = new ContextOptions
            {
                ParallelFor = (n, body) =>
                {
                    if (Volatile.Read(ref meet)) Test.True(both.SignalAndWait(10000), "another call came in");
                    for (int i = 0; i < n; ++i) body(i);
                },
            };
            using (var model = new Model("int4", Rope.Half, options))
            {
                model.Fill(model.Sequence, 300, 1);
                float[] q = Model.Numbers(40 * Model.QueryRow, 2);
                Volatile.Write(ref meet, true);
                AtOnce(2, t => model.Cache.Attend(0, model.Sequence, q, new float[q.Length]));
            }
        }

        public static void Sequences_of_a_cache_are_filled_forked_and_attended_to_at_once()
        {
            using (var model = new Model("int4"))
            {
                float[] k = Model.Numbers(Model.Row, 1), q = Model.Numbers(Model.QueryRow, 2);
                AtOnce(4, t =>
                {
                    using (var sequence = new Sequence(model.Cache))
                    {
                        var output = new float[q.Length];
                        for (int i = 0; i < 100; ++i)
                        {
                            sequence.Append(0, k, k);
                            model.Cache.Attend(0, sequence, q, output);
                            if (i % 25 == 24)
                                using (Sequence fork = sequence.Fork()) fork.Append(0, k, k);
                            if (i % 40 == 0) model.Cache.Usage();
                        }
                        Test.Equal(100, sequence.Length(0), "length");
                    }
                });
            }
        }

        public static void Calls_that_want_a_sequence_for_themselves_wait_for_each_other()
        {
            using (var model = new Model())
            {
                var sequences = new Sequence[64];
                for (int i = 0; i < sequences.Length; ++i) sequences[i] = new Sequence(model.Cache);
                var backwards = (Sequence[])sequences.Clone();
                Array.Reverse(backwards);
                float[] k = new float[sequences.Length * Model.Row];
                AtOnce(4, t =>
                {
                    var batch = new AppendBatch { Sequences = t % 2 == 0 ? sequences : backwards, K = k, V = k };
                    for (int i = 0; i < 200; ++i) model.Cache.Append(0, batch);
                });
                foreach (Sequence sequence in sequences)
                {
                    Test.Equal(800, sequence.Length(0), "length");
                    sequence.Dispose();
                }
            }
        }

        public static void Closing_while_others_attend_ends_in_their_ObjectDisposedException()
        {
            for (int round = 0; round < 20; ++round)
            {
                using (var model = new Model("int4"))
                {
                    model.Fill(model.Sequence, 64, 1);
                    float[] q = Model.Numbers(Model.QueryRow, 2);
                    AtOnce(3, t =>
                    {
                        if (t == 0)
                        {
                            Thread.Sleep(1);
                            model.Sequence.Dispose();
                            return;
                        }
                        Test.Throws<ObjectDisposedException>("Sequence", () =>
                        {
                            while (true) model.Cache.Attend(0, model.Sequence, q, new float[q.Length]);
                        });
                    });
                }
            }
        }
    }
}
