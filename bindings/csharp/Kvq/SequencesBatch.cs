using System;

namespace Kvq
{
    /// <summary>Base of batches for several sequences.</summary>
    public abstract class SequencesBatch
    {
        internal SequencesBatch() { }

        Sequence[] listed;

        /// <summary>Sequences of one cache; one may occur repeatedly only in an <see cref="AttendBatch"/>.</summary>
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

        /// Counts the rows of all sequences; the names are those of the properties, for messages.
        internal long CheckRows(int[] counts, string countsName, int[] positions, string positionsName)
        {
            if (listed == null) throw new ArgumentNullException(nameof(Sequences));
            long rows = Shape.Sum(counts, listed.Length, countsName);
            Shape.Positions(positions, rows, positionsName);
            return rows;
        }
    }
}
