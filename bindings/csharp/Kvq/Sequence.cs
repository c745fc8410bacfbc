using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>The pages of one conversation. The cache may be disposed of first: the sequence keeps alive what it
    /// needs.</summary>
    public sealed unsafe partial class Sequence : NativeObject
    {
        readonly IntPtr cachePointer; // borrowed; lives as long as the sequence

        /// <summary>Create an empty sequence; see <see cref="Native.kvq_sequence_create"/>.</summary>
        /// <param name="cache">Cache of the sequence.</param>
        public Sequence(Cache cache) : this(cache, Create(cache)) { }

        internal Sequence(Cache cache, SequenceHandle handle) : base(handle, cache.Hooks)
        {
            Cache = cache;
            cachePointer = Native.kvq_sequence_cache(handle.DangerousGetHandle());
        }

        static SequenceHandle Create(Cache cache)
        {
            if (cache == null) throw new ArgumentNullException(nameof(cache));
            var handle = new SequenceHandle();
            Call.Create(cache, handle, Native.kvq_sequence_create);
            return handle;
        }

        /// <summary>The cache that the sequence belongs to; it may have been disposed of.</summary>
        public Cache Cache { get; }

        /// The cache counts the users of its sequences, for calls that need all of them.
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

        /// <summary>Create a sequence that starts with all tokens of this one; see
        /// <see cref="Native.kvq_sequence_fork"/>.</summary>
        /// <returns>The fork.</returns>
        public Sequence Fork()
        {
            var handle = new SequenceHandle();
            Call.Create(this, handle, (it, result, error) => Native.kvq_sequence_fork(cachePointer, it, result, error));
            return new Sequence(Cache, handle);
        }

        /// <summary>Keep a copy of the state of a layer after the first <paramref name="tokens"/> tokens, for recurrent
        /// layers of hybrid models; see <see cref="Native.kvq_sequence_put_state"/>.</summary>
        /// <param name="layer">Any layer of the model.</param>
        /// <param name="tokens">At least 1. A state of the same layer after as many tokens is replaced.</param>
        /// <param name="data">The state.</param>
        public void PutState(int layer, int tokens, byte[] data)
        {
            if (data == null) throw new ArgumentNullException(nameof(data));
            if (data.Length == 0) throw new ArgumentException("data is empty", nameof(data));
            var error = Call.Error();
            using (Use it = Use(alone: true))
            fixed (byte* bytes = data)
                Call.Check(Native.kvq_sequence_put_state(cachePointer, it, layer, tokens, bytes,
                    (UIntPtr)data.Length, &error), &error, Hooks);
        }

        /// <summary>See <see cref="Native.kvq_cache_usage"/>.</summary>
        /// <returns>Bytes used by this sequence, with shared pages counted in full.</returns>
        public Usage Usage()
        {
            var error = Call.Error();
            var raw = new kvq_usage { struct_size = (uint)sizeof(kvq_usage) };
            using (Use it = Use()) Call.Check(Native.kvq_cache_usage(cachePointer, it, &raw, &error), &error, Hooks);
            return new Usage(&raw);
        }
    }
}
