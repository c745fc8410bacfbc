#if NET8_0_OR_GREATER
using System;

namespace Kvq
{
    public sealed unsafe partial class Sequence
    {
        /// <summary>As <see cref="Append(int, float[], float[], int[])"/>, of spans.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, head_dim].</param>
        /// <param name="v">Values, of the same shape.</param>
        public void Append(int layer, ReadOnlySpan<float> k, ReadOnlySpan<float> v)
        {
            fixed (float* keys = k, values = v)
                Append(layer, Tensor.At(keys, k.Length, Dtype.F32), Tensor.At(values, v.Length, Dtype.F32));
        }
    }

    public sealed unsafe partial class Cache
    {
        /// <summary>As <see cref="Attend(int, Sequence, float[], float[])"/>, of spans.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="sequence">A sequence of this cache.</param>
        /// <param name="q">Queries before RoPE, [queries, q_heads, head_dim]: those of the last tokens.</param>
        /// <param name="output">Receives as many numbers.</param>
        public void Attend(int layer, Sequence sequence, ReadOnlySpan<float> q, Span<float> output)
        {
            fixed (float* queries = q, to = output)
                Attend(layer, sequence, Tensor.At(queries, q.Length, Dtype.F32), Tensor.At(to, output.Length, Dtype.F32));
        }
    }

    public sealed unsafe partial class Matrix
    {
        /// <summary>As <see cref="Linear(float[], float[])"/>, of spans.</summary>
        /// <param name="x">[batch, columns].</param>
        /// <param name="y">Receives [batch, rows]; may not overlap <paramref name="x"/>.</param>
        public void Linear(ReadOnlySpan<float> x, Span<float> y)
        {
            fixed (float* from = x, to = y)
                Linear(Tensor.At(from, x.Length, Dtype.F32), Tensor.At(to, y.Length, Dtype.F32));
        }
    }
}
#endif
