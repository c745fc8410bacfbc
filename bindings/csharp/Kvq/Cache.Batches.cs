using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Cache
    {
        /// <summary>Append tokens to one layer of several sequences: to all of them or to none. See
        /// <see cref="Native.kvq_append_sequences"/>. <see cref="Extend(int, ExtendBatch)"/> also attends, and loses
        /// less for chunks of a prompt.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The tokens.</param>
        public void Append(int layer, AppendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.Host(Context.Device, nameof(Append));
            long tokens = batch.CheckTokens();
            LayerInfo shape = Layer(layer);
            Tensor v = CheckKeysAndValues(shape, tokens, batch.K, batch.KTokenStride, batch.KHeadStride, batch.V,
                batch.VTokenStride, batch.VHeadStride);
            Shape.Numbers(batch.RopePositions, 3 * tokens, "RopePositions", "[tokens, 3]");
            kvq_append_batch raw = batch.raw;
            raw.dtype = batch.K.Dtype;
            fixed (float* kFloats = batch.K.Floats, vFloats = v.Floats)
            fixed (ushort* kBits = batch.K.Bits, vBits = v.Bits)
            fixed (int* streams = batch.RopePositions)
            {
                raw.rope_positions = streams;
                raw.k = batch.K.Start(kFloats, kBits);
                raw.v = v.Start(vFloats, vBits);
                Append(layer, batch, raw);
            }
        }

        /// <summary>Like <see cref="Append(int, AppendBatch)"/>, from device memory, which the context's stream reads
        /// in order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The tokens.</param>
        public void AppendDevice(int layer, DeviceAppendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.OnDevice(Context.Device, nameof(AppendDevice));
            batch.CheckTokens();
            kvq_append_batch raw = batch.raw;
            raw.k = (void*)batch.K;
            raw.v = (void*)batch.V;
            raw.rope_positions = (int*)batch.RopePositions;
            Append(layer, batch, raw);
        }

        void Append(int layer, AppendBatchBase batch, kvq_append_batch raw)
        {
            var error = Call.Error();
            using (Use it = Use())
            using (new UseMany(batch.Sorted, alone: true))
            fixed (IntPtr* sequences = batch.Pointers)
            fixed (int* counts = batch.TokenCounts, positions = batch.Positions)
            {
                raw.n_sequences = batch.Pointers.Length;
                raw.sequences = sequences;
                raw.token_counts = counts;
                raw.positions = positions;
                Call.Check(Native.kvq_append_sequences(it, layer, &raw, &error), &error, Hooks);
            }
        }

        /// <summary>Compute attention of the last queries of one sequence over one layer; see
        /// <see cref="Native.kvq_attend"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="sequence">A sequence of this cache.</param>
        /// <param name="q">Queries before RoPE, [queries, q_heads, key_dim], for the last tokens.</param>
        /// <param name="output">Receives the result, [queries, q_heads, value_dim].</param>
        public void Attend(int layer, Sequence sequence, float[] q, float[] output) =>
            Attend(layer, sequence, (Tensor)q, (Tensor)output);

        /// <summary>Like <see cref="Attend(int, Sequence, float[], float[])"/>, of any type.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="sequence">A sequence of this cache.</param>
        /// <param name="q">Queries before RoPE, [queries, q_heads, key_dim], for the last tokens.</param>
        /// <param name="output">Receives the result, [queries, q_heads, value_dim].</param>
        public void Attend(int layer, Sequence sequence, Tensor q, Tensor output)
        {
            if (sequence == null) throw new ArgumentNullException(nameof(sequence));
            Shape.Host(Context.Device, nameof(Attend));
            LayerInfo shape = Layer(layer);
            int queries = Shape.Rows(q, (long)shape.QHeads * shape.KeyDim, "q", "[queries, q_heads, key_dim]");
            Shape.Exactly(output, (long)queries * shape.QHeads * shape.ValueDim, "output",
                "[queries, q_heads, value_dim]");
            kvq_attend_batch batch = attendDefaults;
            batch.n_sequences = 1;
            batch.query_counts = &queries;
            batch.q_dtype = q.Dtype;
            batch.output_dtype = output.Dtype;
            var error = Call.Error();
            using (Use it = Use())
            using (var held = new Use(sequence.Enter(info.EvictionBudget > 0), sequence))
            fixed (float* qFloats = q.Floats, outputFloats = output.Floats)
            fixed (ushort* qBits = q.Bits, outputBits = output.Bits)
            {
                IntPtr one = held;
                batch.sequences = &one;
                batch.q = q.Start(qFloats, qBits);
                batch.output = output.Start(outputFloats, outputBits);
                Call.Check(Native.kvq_attend(it, layer, &batch, &error), &error, Hooks);
            }
        }

        /// <summary>Compute attention of a batch of queries over one layer; see <see cref="Native.kvq_attend"/>. Runs
        /// concurrently with other calls, unless the policy evicts: then one call at a time uses the
        /// sequences.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The queries, and where their results go.</param>
        public void Attend(int layer, AttendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.Host(Context.Device, nameof(Attend));
            long queries = batch.CheckQueries();
            LayerInfo shape = Layer(layer);
            CheckQueriesAndOutput(shape, queries, batch.Q, batch.QTokenStride, batch.QHeadStride, batch.Output,
                batch.OutputTokenStride, batch.OutputHeadStride);
            CheckSums(shape, queries, batch.Lse, batch.Sinks);
            CheckMask(queries, batch.Mask, batch.MaskSlots);
            Shape.Numbers(batch.RopePositions, 3 * queries, "RopePositions", "[queries, 3]");
            kvq_attend_batch raw = batch.raw;
            raw.q_dtype = batch.Q.Dtype;
            raw.output_dtype = batch.Output.Dtype;
            fixed (float* qFloats = batch.Q.Floats, outputFloats = batch.Output.Floats, lse = batch.Lse,
                sinks = batch.Sinks)
            fixed (ushort* qBits = batch.Q.Bits, outputBits = batch.Output.Bits)
            fixed (uint* mask = batch.Mask)
            fixed (int* streams = batch.RopePositions)
            {
                raw.mask = mask;
                raw.rope_positions = streams;
                raw.q = batch.Q.Start(qFloats, qBits);
                raw.output = batch.Output.Start(outputFloats, outputBits);
                raw.lse = lse;
                raw.sinks = sinks;
                Attend(layer, batch, raw);
            }
        }

        /// <summary>Like <see cref="Attend(int, AttendBatch)"/>, in device memory, which the context's stream uses in
        /// order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The queries, and where their results go.</param>
        public void AttendDevice(int layer, DeviceAttendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.OnDevice(Context.Device, nameof(AttendDevice));
            batch.CheckQueries();
            kvq_attend_batch raw = batch.raw;
            raw.q = (void*)batch.Q;
            raw.output = (void*)batch.Output;
            raw.lse = (float*)batch.Lse;
            raw.sinks = (float*)batch.Sinks;
            raw.mask = (uint*)batch.Mask;
            raw.rope_positions = (int*)batch.RopePositions;
            Attend(layer, batch, raw);
        }

        void Attend(int layer, AttendBatchBase batch, kvq_attend_batch raw)
        {
            var error = Call.Error();
            using (Use it = Use())
            using (new UseMany(batch.Sorted, info.EvictionBudget > 0))
            fixed (IntPtr* sequences = batch.Pointers)
            fixed (int* counts = batch.QueryCounts, positions = batch.QueryPositions)
            {
                raw.n_sequences = batch.Pointers.Length;
                raw.sequences = sequences;
                raw.query_counts = counts;
                raw.query_positions = positions;
                Call.Check(Native.kvq_attend(it, layer, &raw, &error), &error, Hooks);
            }
        }

        /// <summary>Append tokens to one layer of several sequences and attend with their queries: all of it or
        /// nothing. See <see cref="Native.kvq_extend"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The tokens, their queries, and where results go.</param>
        public void Extend(int layer, ExtendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.Host(Context.Device, nameof(Extend));
            long tokens = batch.CheckTokens();
            LayerInfo shape = Layer(layer);
            Tensor v = CheckKeysAndValues(shape, tokens, batch.K, batch.KTokenStride, batch.KHeadStride, batch.V,
                batch.VTokenStride, batch.VHeadStride);
            CheckQueriesAndOutput(shape, tokens, batch.Q, batch.QTokenStride, batch.QHeadStride, batch.Output,
                batch.OutputTokenStride, batch.OutputHeadStride);
            CheckSums(shape, tokens, batch.Lse, batch.Sinks);
            CheckMask(tokens, batch.Mask, batch.MaskSlots);
            Shape.Numbers(batch.RopePositions, 3 * tokens, "RopePositions", "[tokens, 3]");
            kvq_extend_batch raw = batch.raw;
            raw.dtype = batch.K.Dtype;
            raw.q_dtype = batch.Q.Dtype;
            raw.output_dtype = batch.Output.Dtype;
            fixed (float* kFloats = batch.K.Floats, vFloats = v.Floats, qFloats = batch.Q.Floats,
                outputFloats = batch.Output.Floats, lse = batch.Lse, sinks = batch.Sinks)
            fixed (ushort* kBits = batch.K.Bits, vBits = v.Bits, qBits = batch.Q.Bits,
                outputBits = batch.Output.Bits)
            fixed (uint* mask = batch.Mask)
            fixed (int* streams = batch.RopePositions)
            {
                raw.mask = mask;
                raw.rope_positions = streams;
                raw.k = batch.K.Start(kFloats, kBits);
                raw.v = v.Start(vFloats, vBits);
                raw.q = batch.Q.Start(qFloats, qBits);
                raw.output = batch.Output.Start(outputFloats, outputBits);
                raw.lse = lse;
                raw.sinks = sinks;
                Extend(layer, batch, raw);
            }
        }

        /// <summary>Like <see cref="Extend(int, ExtendBatch)"/>, in device memory, which the context's stream uses in
        /// order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The tokens, their queries, and where results go.</param>
        public void ExtendDevice(int layer, DeviceExtendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.OnDevice(Context.Device, nameof(ExtendDevice));
            batch.CheckTokens();
            kvq_extend_batch raw = batch.raw;
            raw.k = (void*)batch.K;
            raw.v = (void*)batch.V;
            raw.q = (void*)batch.Q;
            raw.output = (void*)batch.Output;
            raw.lse = (float*)batch.Lse;
            raw.sinks = (float*)batch.Sinks;
            raw.mask = (uint*)batch.Mask;
            raw.rope_positions = (int*)batch.RopePositions;
            Extend(layer, batch, raw);
        }

        void Extend(int layer, ExtendBatchBase batch, kvq_extend_batch raw)
        {
            var error = Call.Error();
            using (Use it = Use())
            using (new UseMany(batch.Sorted, alone: true))
            fixed (IntPtr* sequences = batch.Pointers)
            fixed (int* counts = batch.TokenCounts, positions = batch.Positions)
            {
                raw.n_sequences = batch.Pointers.Length;
                raw.sequences = sequences;
                raw.token_counts = counts;
                raw.positions = positions;
                Call.Check(Native.kvq_extend(it, layer, &raw, &error), &error, Hooks);
            }
        }

        /// Returns the values that the library takes: none where they are a prefix of the keys.
        internal static Tensor CheckKeysAndValues(LayerInfo shape, long tokens, in Tensor k, long kTokenStride,
            long kHeadStride, in Tensor v, long vTokenStride, long vHeadStride)
        {
            Shape.Strided(k, tokens, shape.KvHeads, shape.KeyDim, kTokenStride, kHeadStride, "K");
            if (shape.ValuesAreKeyPrefix) return Shape.Absent(v, "V");
            Shape.Strided(v, tokens, shape.KvHeads, shape.ValueDim, vTokenStride, vHeadStride, "V");
            Shape.Same(k.Dtype, v.Dtype, "V", "K");
            return v;
        }

        internal static void CheckQueriesAndOutput(LayerInfo shape, long queries, in Tensor q, long qTokenStride,
            long qHeadStride, in Tensor output, long outputTokenStride, long outputHeadStride)
        {
            Shape.Strided(q, queries, shape.QHeads, shape.KeyDim, qTokenStride, qHeadStride, "Q");
            Shape.Strided(output, queries, shape.QHeads, shape.ValueDim, outputTokenStride, outputHeadStride, "Output");
        }

        internal static void CheckSums(LayerInfo shape, long queries, float[] lse, float[] sinks)
        {
            if (lse != null) Shape.Exactly(lse, queries * shape.QHeads, "Lse", "[queries, q_heads]");
            if (sinks != null) Shape.Exactly(sinks, shape.QHeads, "Sinks", "[q_heads]");
        }

        internal static void CheckMask(long queries, uint[] mask, int maskSlots)
        {
            long words = queries * ((Math.Max(maskSlots, 0) + 31L) / 32);
            if (mask == null || mask.LongLength == words) return;
            throw new ArgumentException("Mask has " + mask.LongLength + " elements, expected " + words +
                ": [queries, (MaskSlots + 31) / 32]", nameof(mask));
        }
    }

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

    /// <remarks>A batch may be reused, by one thread at a time.</remarks>
    public abstract partial class AppendBatchBase : SequencesBatch
    {
        internal AppendBatchBase() { }

        internal long CheckTokens() => CheckRows(TokenCounts, nameof(TokenCounts), Positions, nameof(Positions));
    }

    /// <remarks>A batch may be reused, by one thread at a time.</remarks>
    public abstract partial class AttendBatchBase : SequencesBatch
    {
        internal AttendBatchBase() { }

        internal long CheckQueries() =>
            CheckRows(QueryCounts, nameof(QueryCounts), QueryPositions, nameof(QueryPositions));
    }

    /// <remarks>A batch may be reused, by one thread at a time.</remarks>
    public abstract partial class ExtendBatchBase : SequencesBatch
    {
        internal ExtendBatchBase() { }

        internal long CheckTokens() => CheckRows(TokenCounts, nameof(TokenCounts), Positions, nameof(Positions));
    }
}
