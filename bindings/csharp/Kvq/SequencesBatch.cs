using System;

namespace Kvq
{
    /// <summary>Base of batches for several sequences.</summary>
    public abstract class SequencesBatch
    {
        internal SequencesBatch() { }

        internal Sequence[] Listed { get; private set; }

        internal NativeObject[] Sorted { get; private set; }

        internal IntPtr[] Pointers { get; private set; }

        internal void List(Sequence[] sequences, string name)
        {
            Sorted = UseMany.Sorted(sequences, name);
            Pointers = UseMany.Pointers(sequences);
            Listed = (Sequence[])sequences.Clone();
        }

        /// Counts the rows of all sequences; the names are those of the properties, for messages.
        internal long CheckRows(int[] counts, string countsName, int[] positions, string positionsName)
        {
            long rows = Shape.Sum(counts, Listed.Length, countsName);
            Shape.Positions(positions, rows, positionsName);
            return rows;
        }
    }
}
