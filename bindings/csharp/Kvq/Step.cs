using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Cache
    {
        /// <summary>Begin a step of some sequences: appends to all layers that are kept together, or taken back. See
        /// <see cref="Native.kvq_step_begin"/>.</summary>
        /// <param name="sequences">Sequences of this cache, all different. No other thread may use them until the step
        /// ends.</param>
        /// <param name="tokenCounts">Tokens per sequence that a layer takes at most; none: one each.</param>
        /// <returns>The step: dispose of it, which aborts it unless it has been committed.</returns>
        public Step BeginStep(Sequence[] sequences, params int[] tokenCounts) =>
            new Step(this, sequences, tokenCounts);
    }

    /// <summary>Appends to all layers of some sequences, from <see cref="Cache.BeginStep"/>: a commit keeps them,
    /// otherwise the end of a <c>using</c> statement takes them back. One thread at a time may use it.</summary>
    public sealed unsafe class Step : IDisposable
    {
        static readonly int[] None = new int[0];

        readonly Cache cache;
        readonly Sequence[] sequences;

        internal Step(Cache cache, Sequence[] sequences, int[] tokenCounts)
        {
            if (sequences == null) throw new ArgumentNullException(nameof(sequences));
            this.cache = cache;
            this.sequences = (Sequence[])sequences.Clone();
            try
            {
                Run(Native.kvq_step_begin, this.sequences, tokenCounts, true);
            }
            catch
            {
                Dispose(); // the step has begun if it was a hook's exception
                throw;
            }
        }

        /// <summary>Whether the step has not ended.</summary>
        public bool IsActive { get; private set; }

        /// <summary>Keep the first tokens of each sequence, and end the step. If this throws, the step goes on. See
        /// <see cref="Native.kvq_step_commit"/>.</summary>
        /// <param name="tokenCounts">Tokens per sequence, from 0 on; none: all, of which layers must have received as
        /// many.</param>
        public void Commit(params int[] tokenCounts)
        {
            if (!IsActive) throw new InvalidOperationException("The step has ended");
            Run(Native.kvq_step_commit, sequences, tokenCounts, false);
        }

        /// <summary>Keep any tokens of each sequence, such as a path of a draft tree, and end the step. If this throws,
        /// the step goes on. See <see cref="Native.kvq_step_commit"/>.</summary>
        /// <param name="keptSlots">For each sequence the tokens to keep, counted from 0 in the order of appending,
        /// ascending.</param>
        public void CommitKept(params int[][] keptSlots)
        {
            if (keptSlots == null) throw new ArgumentNullException(nameof(keptSlots));
            if (!IsActive) throw new InvalidOperationException("The step has ended");
            var all = new List<int>();
            foreach (int[] each in keptSlots) all.AddRange(each);
            all.Add(0); // an address also if none is kept
            Run(Native.kvq_step_commit, sequences, Array.ConvertAll(keptSlots, each => each.Length), false,
                all.ToArray());
        }

        /// <summary>Take all tokens back, and end the step; does nothing if it has ended. Sequences that have been
        /// disposed of are left out. See <see cref="Native.kvq_step_abort"/>.</summary>
        public void Abort()
        {
            if (!IsActive) return;
            Sequence[] open = Array.FindAll(sequences, it => !it.IsClosed);
            if (open.Length > 0) Run(Native.kvq_step_abort, open, None, false);
            IsActive = false;
        }

        /// <summary>Abort the step unless it has ended. Failures are dropped.</summary>
        public void Dispose()
        {
            try
            {
                Abort();
            }
            catch (KvqException)
            {
            }
            catch (InvalidOperationException) // the cache has been disposed of, or a hook does this
            {
            }
        }

        delegate Status StepCall(IntPtr cache, kvq_step_batch* batch, kvq_error* error);

        /// After the call, the step is active or not.
        void Run(StepCall call, Sequence[] some, int[] tokenCounts, bool active, int[] keptSlots = null)
        {
            if (tokenCounts == null) tokenCounts = None;
            if (tokenCounts.Length > 0 && tokenCounts.Length != some.Length)
                throw new ArgumentException("tokenCounts has " + tokenCounts.Length + " elements; there are " +
                    some.Length + " sequences", nameof(tokenCounts));
            var sorted = UseMany.Sorted(some, nameof(sequences));
            var error = Call.Error();
            var raw = default(kvq_step_batch);
            Native.kvq_step_batch_init(&raw, (UIntPtr)sizeof(kvq_step_batch));
            using (Use it = cache.Use())
            using (new UseMany(sorted, alone: true))
            fixed (IntPtr* pointers = UseMany.Pointers(some))
            fixed (int* counts = tokenCounts, kept = keptSlots)
            {
                raw.n_sequences = some.Length;
                raw.sequences = pointers;
                raw.token_counts = counts; // null if there are none
                raw.kept_slots = kept;
                Status status = call(it, &raw, &error);
                if (status == Status.Ok) IsActive = active;
                Call.Check(status, &error, cache.Hooks);
            }
        }
    }
}
