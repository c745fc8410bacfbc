using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Sequence
    {
        /// <summary>Append tokens to one layer; see <see cref="Native.kvq_append"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, key_dim].</param>
        /// <param name="v">Values, [tokens, kv_heads, value_dim]; null exactly where they are a prefix of the
        /// keys.</param>
        /// <param name="positions">Original positions; null: consecutive.</param>
        public void Append(int layer, float[] k, float[] v = null, int[] positions = null) =>
            Append(layer, (Tensor)k, (Tensor)v, positions);

        /// <summary>Append tokens of any type.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, key_dim].</param>
        /// <param name="v">Values of the same type, [tokens, kv_heads, value_dim]; none exactly where they are a prefix
        /// of the keys.</param>
        /// <param name="positions">Original positions; null: consecutive.</param>
        public void Append(int layer, Tensor k, Tensor v = default(Tensor), int[] positions = null)
        {
            Shape.Host(Cache.Context.Device, nameof(Append));
            LayerInfo shape = Layer(layer);
            int tokens = Shape.Rows(k, (long)shape.KvHeads * shape.KeyDim, "k", "[tokens, kv_heads, key_dim]");
            if (shape.ValuesAreKeyPrefix)
            {
                v = Shape.Absent(v, "v");
            }
            else
            {
                Shape.Exactly(v, (long)tokens * shape.KvHeads * shape.ValueDim, "v", "[tokens, kv_heads, value_dim]");
                Shape.Same(k.Dtype, v.Dtype, "v", "k");
            }
            fixed (float* kFloats = k.Floats, vFloats = v.Floats)
            fixed (ushort* kBits = k.Bits, vBits = v.Bits)
                Append(layer, tokens, k.Start(kFloats, kBits), v.Start(vFloats, vBits), k.Dtype, positions);
        }

        /// <summary>Append tokens from device memory, which the context's stream reads in order: it must live until the
        /// stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="tokens">Number of tokens.</param>
        /// <param name="k">Device memory: keys before RoPE, [tokens, kv_heads, key_dim].</param>
        /// <param name="v">Device memory: values of the same type, [tokens, kv_heads, value_dim]; zero exactly where
        /// they are a prefix of the keys.</param>
        /// <param name="dtype">Type of keys and values.</param>
        /// <param name="positions">Original positions, in host memory; null: consecutive.</param>
        public void AppendDevice(int layer, int tokens, IntPtr k, IntPtr v, Dtype dtype, int[] positions = null)
        {
            Shape.OnDevice(Cache.Context.Device, nameof(AppendDevice));
            Append(layer, tokens, (void*)k, (void*)v, dtype, positions);
        }

        /// The shape of a layer; another one is refused by the library, even if the cache has been disposed of.
        LayerInfo Layer(int layer) => Cache.Known(layer) ?? DescribeLayer(layer);

        void Append(int layer, int tokens, void* k, void* v, Dtype dtype, int[] positions)
        {
            Shape.Positions(positions, tokens, nameof(positions));
            var error = Call.Error();
            using (Use it = Use(alone: true))
            fixed (int* where = positions)
                Call.Check(Native.kvq_append(cachePointer, it, layer, tokens, k, v, dtype, where, &error), &error,
                    Hooks);
        }

        /// <summary>Decode stored keys and values, for inspection and tests; see
        /// <see cref="Native.kvq_sequence_decode"/>. Not optimised.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="kvHead">The KV head.</param>
        /// <param name="begin">First slot in the head's list.</param>
        /// <param name="slots">Number of slots.</param>
        /// <param name="k">Receives [slots, key_dim] keys after RoPE; null: skip.</param>
        /// <param name="v">Receives [slots, value_dim] values; null: skip.</param>
        /// <param name="positions">Receives original positions; null: skip.</param>
        public void Decode(int layer, int kvHead, int begin, int slots, float[] k, float[] v, int[] positions = null)
        {
            LayerInfo shape = Layer(layer);
            if (k != null) Shape.AtLeast(k.Length, (long)slots * shape.KeyDim, "k", "[slots, key_dim]");
            if (v != null) Shape.AtLeast(v.Length, (long)slots * shape.ValueDim, "v", "[slots, value_dim]");
            if (positions != null) Shape.AtLeast(positions.Length, slots, "positions", "[slots]");
            var error = Call.Error();
            using (Use it = Use())
            fixed (float* keys = k, values = v)
            fixed (int* where = positions)
                Call.Check(Native.kvq_sequence_decode(cachePointer, it, layer, kvHead, begin, slots, keys, values,
                    where, &error), &error, Hooks);
        }

        /// <summary>Evict tokens as the cache's policy says; see <see cref="Native.kvq_compress"/>.</summary>
        /// <param name="budget">Tokens that a KV head keeps on average; 0: the policy's budget.</param>
        /// <returns>The result of the eviction.</returns>
        public Compressed Compress(int budget = 0)
        {
            var options = default(kvq_compress_options);
            Native.kvq_compress_options_init(&options, (UIntPtr)sizeof(kvq_compress_options));
            var kept = new int[Cache.Describe().NLayers, Cache.Describe().KvHeads];
            ulong freed = 0;
            options.budget = budget;
            options.bytes_freed = &freed;
            var error = Call.Error();
            using (Use it = Use(alone: true))
            fixed (int* counts = &kept[0, 0])
            {
                options.kept = counts;
                Call.Check(Native.kvq_compress(cachePointer, it, &options, &error), &error, Hooks);
            }
            return new Compressed(kept, freed);
        }
    }

    /// <summary>Result of <see cref="Sequence.Compress"/>.</summary>
    public sealed class Compressed
    {
        internal Compressed(int[,] kept, ulong bytesFreed)
        {
            Kept = kept;
            BytesFreed = bytesFreed;
        }

        /// <summary>[n_layers, kv_heads]: tokens that each head holds now.</summary>
        public int[,] Kept { get; }

        /// <summary>Decrease in the bytes of the sequence.</summary>
        public ulong BytesFreed { get; }
    }
}
