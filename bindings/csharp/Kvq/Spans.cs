#if NET8_0_OR_GREATER
using System;
using System.Runtime.InteropServices;

namespace Kvq
{
    public sealed unsafe partial class Sequence
    {
        /// <summary>Like <see cref="Append(int, float[], float[], int[])"/>, with spans.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, head_dim].</param>
        /// <param name="v">Values, of the same shape.</param>
        public void Append(int layer, ReadOnlySpan<float> k, ReadOnlySpan<float> v)
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
        /// <param name="q">Queries before RoPE, [queries, q_heads, head_dim], for the last tokens.</param>
        /// <param name="output">Receives the result, of the same shape.</param>
        public void Attend(int layer, Sequence sequence, ReadOnlySpan<float> q, Span<float> output)
        {
            fixed (float* queries = &MemoryMarshal.GetReference(q), to = &MemoryMarshal.GetReference(output))
                Attend(layer, sequence, Tensor.Pinned(queries, q.Length), Tensor.Pinned(to, output.Length));
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
