using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>The pages of one conversation. It keeps what it needs of its cache alive, which may be disposed of
    /// before it.</summary>
    public sealed unsafe partial class Sequence : NativeObject
    {
        readonly IntPtr cachePointer; // borrowed, lives as long as the sequence does
        readonly long row;

        /// <summary>Create an empty sequence; see <see cref="Native.kvq_sequence_create"/>.</summary>
        /// <param name="cache">The cache that it belongs to.</param>
        public Sequence(Cache cache) : this(cache, Create(cache)) { }

        internal Sequence(Cache cache, SequenceHandle handle) : base(handle, cache.Hooks)
        {
            Cache = cache;
            cachePointer = Native.kvq_sequence_cache(handle.DangerousGetHandle());
            row = (long)cache.Describe().KvHeads * cache.Describe().HeadDim;
        }

        static SequenceHandle Create(Cache cache)
        {
            if (cache == null) throw new ArgumentNullException(nameof(cache));
            var error = Call.Error();
            var handle = new SequenceHandle();
            IntPtr result;
            using (Use it = cache.Use())
                Call.Check(Native.kvq_sequence_create(it, &result, &error), &error, cache.Hooks, handle, result);
            return handle;
        }

        /// <summary>The cache that it belongs to, which may have been disposed of.</summary>
        public Cache Cache { get; }

        /// The cache counts who uses its sequences, for calls that want them all.
        internal override Use Use(bool alone = false)
        {
            Cache.Enter(evenClosed: true);
            try
            {
                return new Use(Enter(alone), this, Cache);
            }
            catch
            {
                Cache.Leave();
                throw;
            }
        }

        /// <summary>A sequence that starts with everything this one holds; see
        /// <see cref="Native.kvq_sequence_fork"/>.</summary>
        /// <returns>The fork.</returns>
        public Sequence Fork()
        {
            var error = Call.Error();
            var handle = new SequenceHandle();
            IntPtr result;
            using (Use it = Use())
                Call.Check(Native.kvq_sequence_fork(cachePointer, it, &result, &error), &error, Hooks, handle, result);
            return new Sequence(Cache, handle);
        }

        /// <summary>Drop tokens from the end of every layer; see <see cref="Native.kvq_sequence_truncate"/>.</summary>
        /// <param name="length">Tokens that stay.</param>
        public void Truncate(int length)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
                Call.Check(Native.kvq_sequence_truncate(cachePointer, it, length, &error), &error, Hooks);
        }

        /// <summary>Allocate pages; see <see cref="Native.kvq_sequence_reserve"/>.</summary>
        /// <param name="tokens">Tokens per layer; 0 gives back the pages that are left.</param>
        public void Reserve(int tokens)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
                Call.Check(Native.kvq_sequence_reserve(cachePointer, it, tokens, &error), &error, Hooks);
        }

        /// <summary>See <see cref="Native.kvq_sequence_room"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>Tokens that the layer has pages for.</returns>
        public int Room(int layer)
        {
            var error = Call.Error();
            int room;
            using (Use it = Use()) Call.Check(Native.kvq_sequence_room(it, layer, &room, &error), &error, Hooks);
            return room;
        }

        /// <summary>See <see cref="Native.kvq_sequence_length"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>Tokens appended to the layer, evicted ones included.</returns>
        public int Length(int layer)
        {
            var error = Call.Error();
            int length;
            using (Use it = Use()) Call.Check(Native.kvq_sequence_length(it, layer, &length, &error), &error, Hooks);
            return length;
        }

        /// <summary>See <see cref="Native.kvq_sequence_slots"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="kvHead">The KV head.</param>
        /// <returns>Tokens that the head holds.</returns>
        public int Slots(int layer, int kvHead)
        {
            var error = Call.Error();
            int slots;
            using (Use it = Use())
                Call.Check(Native.kvq_sequence_slots(it, layer, kvHead, &slots, &error), &error, Hooks);
            return slots;
        }

        /// <summary>Write a snapshot; see <see cref="Native.kvq_sequence_save"/>.</summary>
        /// <returns>Its bytes, for <see cref="Kvq.Cache.Load"/>.</returns>
        public byte[] Save()
        {
            return Files.Save(this, (it, buffer, capacity, size, error) =>
                              Native.kvq_sequence_save(cachePointer, it, buffer, capacity, size, error));
        }

        /// <summary>See <see cref="Native.kvq_cache_usage"/>.</summary>
        /// <returns>Bytes used by this sequence, shared pages counted in full.</returns>
        public Usage Usage()
        {
            var error = Call.Error();
            var raw = new kvq_usage { struct_size = (uint)sizeof(kvq_usage) };
            using (Use it = Use()) Call.Check(Native.kvq_cache_usage(cachePointer, it, &raw, &error), &error, Hooks);
            return new Usage(&raw);
        }
    }
}
