#if NET8_0_OR_GREATER
using System;
using System.Runtime.InteropServices;

namespace Kvq
{
    public sealed unsafe partial class Sequence
    {
        /// <summary>Like <see cref="Append(int, float[], float[], int[])"/>, with spans.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, key_dim].</param>
        /// <param name="v">Values, [tokens, kv_heads, value_dim]; empty exactly where they are a prefix of the
        /// keys.</param>
        public void Append(int layer, ReadOnlySpan<float> k, ReadOnlySpan<float> v = default(ReadOnlySpan<float>))
        {
            fixed (float* keys = &MemoryMarshal.GetReference(k), values = &MemoryMarshal.GetReference(v))
                Append(layer, Tensor.Pinned(keys, k.Length), Tensor.Pinned(values, v.Length));
        }
    }

    public sealed unsafe partial class Cache
    {
        /// <summary>Like <see cref="Attend(int, Sequence, float[], float[])"/>, with spans.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="sequence">A sequence of this cache.</param>
        /// <param name="q">Queries before RoPE, [queries, q_heads, key_dim], for the last tokens.</param>
        /// <param name="output">Receives the result, [queries, q_heads, value_dim].</param>
        public void Attend(int layer, Sequence sequence, ReadOnlySpan<float> q, Span<float> output)
        {
            fixed (float* queries = &MemoryMarshal.GetReference(q), to = &MemoryMarshal.GetReference(output))
                Attend(layer, sequence, Tensor.Pinned(queries, q.Length), Tensor.Pinned(to, output.Length));
        }

        /// <summary>Like <see cref="Load(byte[], Policy, bool)"/>, from a span.</summary>
        /// <param name="snapshot">A snapshot from <see cref="Save"/> or <see cref="Sequence.Save"/>.</param>
        /// <param name="policy">Policy of the sequences; null: the cache's.</param>
        /// <param name="recode">Write pages in other formats than the policy's anew, instead of throwing.</param>
        /// <returns>The sequences.</returns>
        public Sequence[] Load(ReadOnlySpan<byte> snapshot, Policy policy = null, bool recode = false)
        {
            byte none = 0; // not NULL for an empty span, so that the library refuses it
            fixed (byte* start = &MemoryMarshal.GetReference(snapshot))
                return Load(start == null ? &none : start, snapshot.Length, policy, recode);
        }

        /// <summary>Like <see cref="DescribeSnapshot(byte[], Policy, bool)"/>, of a span.</summary>
        /// <param name="snapshot">A snapshot from <see cref="Save"/> or <see cref="Sequence.Save"/>.</param>
        /// <param name="policy">Null: the cache's.</param>
        /// <param name="recode">Whether pages in other formats than the policy's may be written anew.</param>
        /// <returns>The contents.</returns>
        public SnapshotInfo DescribeSnapshot(ReadOnlySpan<byte> snapshot, Policy policy = null, bool recode = false)
        {
            byte none = 0;
            fixed (byte* start = &MemoryMarshal.GetReference(snapshot))
                return DescribeSnapshot(start == null ? &none : start, snapshot.Length, policy, recode);
        }
    }

    public sealed unsafe partial class Matrix
    {
        /// <summary>Like <see cref="Linear(float[], float[])"/>, with spans.</summary>
        /// <param name="x">[batch, columns].</param>
        /// <param name="y">Receives [batch, rows]; may not overlap <paramref name="x"/>.</param>
        public void Linear(ReadOnlySpan<float> x, Span<float> y)
        {
            fixed (float* from = &MemoryMarshal.GetReference(x), to = &MemoryMarshal.GetReference(y))
                Linear(Tensor.Pinned(from, x.Length), Tensor.Pinned(to, y.Length));
        }
    }
}
#endif
