using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Cache
    {
        /// <summary>Append tokens to one layer of several sequences: to all of them or to none. See
        /// <see cref="Native.kvq_append_sequences"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="batch">The tokens.</param>
        public void Append(int layer, AppendBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.Host(Context.Device, nameof(Append));
            long tokens = batch.CheckTokens();
            Shape.Strided(batch.K, tokens, info.KvHeads, info.HeadDim, batch.KTokenStride, batch.KHeadStride, "K");
            Shape.Strided(batch.V, tokens, info.KvHeads, info.HeadDim, batch.VTokenStride, batch.VHeadStride, "V");
            Shape.Same(batch.K.Dtype, batch.V.Dtype, "V", "K");
            kvq_append_batch raw = batch.raw;
            raw.dtype = batch.K.Dtype;
            fixed (float* kFloats = batch.K.Floats, vFloats = batch.V.Floats)
            fixed (ushort* kBits = batch.K.Bits, vBits = batch.V.Bits)
            {
                raw.k = batch.K.Start(kFloats, kBits);
                raw.v = batch.V.Start(vFloats, vBits);
                Append(layer, batch, ref raw);
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
            Append(layer, batch, ref raw);
        }

        void Append(int layer, AppendBatchBase batch, ref kvq_append_batch filled)
        {
            kvq_append_batch raw = filled;
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
    }

    /// <remarks>A batch may be reused, by one thread at a time.</remarks>
    public abstract partial class AppendBatchBase : SequencesBatch
    {
        internal AppendBatchBase() { }

        /// <summary>Tokens per sequence; null (default): one each.</summary>
        public int[] TokenCounts { get; set; }

        /// <summary>Positions of all tokens; null (default): consecutive in each sequence.</summary>
        public int[] Positions { get; set; }

        internal long CheckTokens() => CheckRows(TokenCounts, nameof(TokenCounts), Positions, nameof(Positions));
    }

    /// <summary>Tokens for one layer of several sequences, in host memory.</summary>
    public sealed class AppendBatch : AppendBatchBase
    {
        /// <summary>Keys before RoPE, [tokens, kv_heads, head_dim].</summary>
        public Tensor K { get; set; }

        /// <summary>Values, of the same shape and type.</summary>
        public Tensor V { get; set; }
    }

    /// <summary>Tokens for one layer of several sequences, in device memory, whose size is not checked.</summary>
    public sealed class DeviceAppendBatch : AppendBatchBase
    {
        /// <summary>Device memory: keys before RoPE, [tokens, kv_heads, head_dim].</summary>
        public IntPtr K { get; set; }

        /// <summary>Device memory: values, of the same shape and type.</summary>
        public IntPtr V { get; set; }

        /// <summary>Type of keys and values; <see cref="Dtype.F32"/> by default.</summary>
        public Dtype Dtype
        {
            get => raw.dtype;
            set => raw.dtype = value;
        }
    }
}
