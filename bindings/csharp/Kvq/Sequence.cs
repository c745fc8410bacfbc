using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>The pages of one conversation. The cache may be disposed of first: the sequence keeps alive what it
    /// needs.</summary>
    public sealed unsafe partial class Sequence : NativeObject
    {
        readonly IntPtr cachePointer; // borrowed; lives as long as the sequence
        readonly long row;

        /// <summary>Create an empty sequence; see <see cref="Native.kvq_sequence_create"/>.</summary>
        /// <param name="cache">Cache of the sequence.</param>
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
            IntPtr result, it = cache.Enter();
            try
            {
                Call.Check(Native.kvq_sequence_create(it, &result, &error), &error, cache.Hooks, handle, result);
            }
            finally
            {
                cache.Leave();
            }
            return handle;
        }

        /// <summary>The cache that the sequence belongs to; it may have been disposed of.</summary>
        public Cache Cache { get; }

        /// The cache counts the users of its sequences, for calls that need all of them.
        IntPtr Hold(bool alone)
        {
            Cache.Enter(evenClosed: true);
            try
            {
                return Enter(alone);
            }
            catch
            {
                Cache.Leave();
                throw;
            }
        }

        void Release()
        {
            Leave();
            Cache.Leave();
        }

        /// <summary>Create a sequence that starts with all tokens of this one; see
        /// <see cref="Native.kvq_sequence_fork"/>.</summary>
        /// <returns>The fork.</returns>
        public Sequence Fork()
        {
            var error = Call.Error();
            var handle = new SequenceHandle();
            IntPtr result, it = Hold(alone: false);
            try
            {
                Call.Check(Native.kvq_sequence_fork(cachePointer, it, &result, &error), &error, Hooks, handle, result);
            }
            finally
            {
                Release();
            }
            return new Sequence(Cache, handle);
        }

        /// <summary>Drop tokens from the end of every layer; see <see cref="Native.kvq_sequence_truncate"/>.</summary>
        /// <param name="length">Tokens to keep.</param>
        public void Truncate(int length)
        {
            var error = Call.Error();
            IntPtr it = Hold(alone: true);
            try
            {
                Call.Check(Native.kvq_sequence_truncate(cachePointer, it, length, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
        }

        /// <summary>Preallocate pages; see <see cref="Native.kvq_sequence_reserve"/>.</summary>
        /// <param name="tokens">Tokens per layer; 0 frees the preallocated pages that are left.</param>
        public void Reserve(int tokens)
        {
            var error = Call.Error();
            IntPtr it = Hold(alone: true);
            try
            {
                Call.Check(Native.kvq_sequence_reserve(cachePointer, it, tokens, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
        }

        /// <summary>See <see cref="Native.kvq_sequence_room"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>Tokens that fit into the preallocated pages of the layer.</returns>
        public int Room(int layer)
        {
            var error = Call.Error();
            int room;
            IntPtr it = Hold(alone: false);
            try
            {
                Call.Check(Native.kvq_sequence_room(it, layer, &room, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
            return room;
        }

        /// <summary>See <see cref="Native.kvq_sequence_length"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <returns>Tokens appended to the layer, including evicted ones.</returns>
        public int Length(int layer)
        {
            var error = Call.Error();
            int length;
            IntPtr it = Hold(alone: false);
            try
            {
                Call.Check(Native.kvq_sequence_length(it, layer, &length, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
            return length;
        }

        /// <summary>See <see cref="Native.kvq_sequence_slots"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="kvHead">The KV head.</param>
        /// <returns>Tokens that the head holds after eviction.</returns>
        public int Slots(int layer, int kvHead)
        {
            var error = Call.Error();
            int slots;
            IntPtr it = Hold(alone: false);
            try
            {
                Call.Check(Native.kvq_sequence_slots(it, layer, kvHead, &slots, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
            return slots;
        }

        /// <summary>Write a snapshot; see <see cref="Native.kvq_sequence_save"/>.</summary>
        /// <returns>Its bytes, for <see cref="Kvq.Cache.Load"/>.</returns>
        public byte[] Save()
        {
            IntPtr it = Hold(alone: false);
            try
            {
                return Files.Save((buffer, capacity, size, error) =>
                                  Native.kvq_sequence_save(cachePointer, it, buffer, capacity, size, error), Hooks);
            }
            finally
            {
                Release();
            }
        }

        /// <summary>See <see cref="Native.kvq_cache_usage"/>.</summary>
        /// <returns>Bytes used by this sequence, with shared pages counted in full.</returns>
        public Usage Usage()
        {
            var error = Call.Error();
            var raw = new kvq_usage { struct_size = (uint)sizeof(kvq_usage) };
            IntPtr it = Hold(alone: false);
            try
            {
                Call.Check(Native.kvq_cache_usage(cachePointer, it, &raw, &error), &error, Hooks);
            }
            finally
            {
                Release();
            }
            return new Usage(&raw);
        }
    }
}
