using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Cache
    {
        /// <summary>Sizes of a layer's blocks and tails in a <see cref="Pool"/>; see
        /// <see cref="Native.kvq_pool_layout"/>.</summary>
        /// <param name="layer">The layer; one without tokens of its own has blocks of 0 bytes.</param>
        /// <param name="blockTokens">Tokens of a block, a multiple of <see cref="Constants.PageSlots"/>.</param>
        /// <returns>The sizes.</returns>
        public BlockLayout BlockLayout(int layer, int blockTokens)
        {
            var error = Call.Error();
            var raw = new kvq_block_layout { struct_size = (uint)sizeof(kvq_block_layout) };
            using (Use it = Use())
                Call.Check(Native.kvq_pool_layout(it, layer, blockTokens, &raw, &error), &error, Hooks);
            return new BlockLayout(&raw);
        }
    }

    public sealed partial class BlockRange
    {
        /// <summary>The first block, where the context computes. Zero: the layer has no tokens of its own.</summary>
        public unsafe IntPtr Data
        {
            get => (IntPtr)raw.data;
            set => raw.data = (void*)value;
        }
    }

    public sealed partial class PoolOptions
    {
        /// <summary>Memory of each layer's tails, where the context computes; zero for one that needs none. null
        /// (default): no layer does.</summary>
        public IntPtr[] Tails { get; set; }

        /// The ranges as the library takes them.
        internal kvq_block_range[] RawRanges(int layers)
        {
            if (Ranges == null) throw new ArgumentNullException(nameof(Ranges));
            if (Ranges.LongLength != (long)layers * NRanges)
                throw new ArgumentException("Ranges has " + Ranges.Length + " elements; [n_layers, NRanges] takes " +
                    (long)layers * NRanges, nameof(Ranges));
            if (Tails != null && Tails.Length != layers)
                throw new ArgumentException("Tails has " + Tails.Length + " elements; there are " + layers + " layers",
                    nameof(Tails));
            int missing = Array.IndexOf(Ranges, null);
            if (missing >= 0) throw new ArgumentNullException(nameof(Ranges) + "[" + missing + "]");
            return Array.ConvertAll(Ranges, it => it.raw);
        }
    }

    /// <summary>Tokens in memory of an engine that keeps block tables: the layers and formats of a cache, but no
    /// sequences of its own. See <see cref="Native.kvq_pool_create"/>.</summary>
    /// <remarks>
    /// <para>The memory of a layer is cut into blocks of so many tokens for all KV heads, which the engine allocates,
    /// shares by prefix, copies, swaps and frees as it likes; sequences are rows of block numbers, which
    /// <see cref="PoolPlan.Batch(PoolBatch)"/> takes. A full page is encoded in its block by the call that brings its
    /// last token; FP16 numbers of the newest two pages are in a tail, of which each growing sequence has one.</para>
    /// <para>The memory is native, or pinned, and stays so until the pool and its plans have been disposed of.</para>
    /// </remarks>
    public sealed unsafe partial class Pool : NativeObject
    {
        /// <summary>See <see cref="Native.kvq_pool_create"/>.</summary>
        /// <param name="cache">The layers and formats. Its policy may not evict or route.</param>
        /// <param name="options">The memory; <see cref="Cache.BlockLayout"/> tells the sizes.</param>
        public Pool(Cache cache, PoolOptions options) : this(cache, new PoolHandle(), options) { }

        Pool(Cache cache, PoolHandle handle, PoolOptions options) : base(handle, Create(cache, handle, options))
        {
            Cache = cache;
        }

        static Hooks Create(Cache cache, PoolHandle handle, PoolOptions options)
        {
            if (cache == null) throw new ArgumentNullException(nameof(cache));
            if (options == null) throw new ArgumentNullException(nameof(options));
            int layers = cache.Describe().NLayers;
            fixed (kvq_block_range* ranges = options.RawRanges(layers))
            fixed (IntPtr* tails = options.Tails)
            {
                kvq_pool_options raw = options.raw;
                raw.n_layers = layers;
                raw.ranges = ranges;
                raw.tails = (void**)tails;
                kvq_pool_options* filled = &raw;
                Call.Create(cache, handle, (it, result, error) => Native.kvq_pool_create(it, filled, result, error));
            }
            return cache.Hooks;
        }

        /// <summary>The cache whose layers and formats the pool has; it may have been disposed of.</summary>
        public Cache Cache { get; }

        /// <summary>Write a block of a layer from bytes of <see cref="ReadBlock"/>: numbers that no encoder writes are
        /// refused. See <see cref="Native.kvq_pool_write_block"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="block">The block, which no other call may use.</param>
        /// <param name="data">As many bytes as a block of the layer has.</param>
        public void WriteBlock(int layer, int block, byte[] data)
        {
            byte[] given = Files.NotEmpty(data, nameof(data));
            var error = Call.Error();
            using (Use it = Use(alone: true))
            fixed (byte* bytes = given)
                Call.Check(Native.kvq_pool_write_block(it, layer, block, bytes, (UIntPtr)data.Length, &error), &error,
                    Hooks);
        }
    }
}
