using System;

namespace Kvq
{
    /// <summary>What batches for several sequences have in common.</summary>
    public abstract class SequencesBatch
    {
        internal SequencesBatch() { }

        Sequence[] listed;

        /// <summary>All of one cache; only an <see cref="AttendBatch"/> may name one repeatedly.</summary>
        public Sequence[] Sequences
        {
            get => listed;
            set
            {
                Sorted = UseMany.Sorted(value, nameof(Sequences));
                Pointers = UseMany.Pointers(value);
                listed = (Sequence[])value.Clone();
            }
        }

        internal NativeObject[] Sorted { get; private set; }

        internal IntPtr[] Pointers { get; private set; }

        /// Rows of all sequences; the names are those of the properties, for messages.
        internal long CheckRows(int[] counts, string countsName, int[] positions, string positionsName)
        {
            if (listed == null) throw new ArgumentNullException(nameof(Sequences));
            long rows = Shape.Sum(counts, listed.Length, countsName);
            Shape.Positions(positions, rows, positionsName);
            return rows;
        }
    }
}
