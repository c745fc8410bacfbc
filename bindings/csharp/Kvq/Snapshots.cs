using System;
using Kvq.Raw;

namespace Kvq
{
    public sealed unsafe partial class Sequence
    {
        /// <summary>Give the sequence another policy than its cache's: its pages are written anew in that policy's
        /// formats, so that it takes less memory from here on. Forks made before keep their pages. See
        /// <see cref="Native.kvq_sequence_recode"/>.</summary>
        /// <param name="policy">Null: the cache's.</param>
        public void Recode(Policy policy = null)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
            using (new UseMany(Policy.Used(policy), alone: false))
                Call.Check(Native.kvq_sequence_recode(cachePointer, it, Policy.Pointer(policy), &error), &error, Hooks);
        }

        /// <summary>Tell what <see cref="Recode"/> takes; see <see cref="Native.kvq_sequence_predict_recode"/>.
        /// </summary>
        /// <param name="policy">Null: the cache's.</param>
        /// <returns>With <see cref="RecodeInfo.NeededBytes"/> free, it succeeds if the hooks find the memory.</returns>
        public RecodeInfo PredictRecode(Policy policy = null)
        {
            var error = Call.Error();
            var raw = new kvq_recode_info { struct_size = (uint)sizeof(kvq_recode_info) };
            using (Use it = Use(alone: true))
            using (new UseMany(Policy.Used(policy), alone: false))
                Call.Check(Native.kvq_sequence_predict_recode(cachePointer, it, Policy.Pointer(policy), &raw, &error),
                    &error, Hooks);
            return new RecodeInfo(&raw);
        }
    }

    public sealed unsafe partial class Cache
    {
        /// <summary>Write a snapshot of several sequences. Pages that they share, as forks do, are written once, and
        /// <see cref="Load(byte[], Policy, bool)"/> shares them again. See <see cref="Native.kvq_cache_save"/>.
        /// </summary>
        /// <param name="sequences">Sequences of this cache, all different.</param>
        /// <returns>The snapshot.</returns>
        public byte[] Save(params Sequence[] sequences)
        {
            NativeObject[] sorted = UseMany.Sorted(sequences, nameof(sequences));
            using (Use())
            using (new UseMany(sorted, alone: false))
                return Files.Save(this, (it, buffer, capacity, size, error) =>
                {
                    fixed (IntPtr* pointers = UseMany.Pointers(sequences))
                        return Native.kvq_cache_save(it, pointers, sequences.Length, buffer, capacity, size, error);
                });
        }

        /// <summary>Create all sequences of a snapshot, in their order, or none; see
        /// <see cref="Native.kvq_cache_load"/>.</summary>
        /// <param name="snapshot">A snapshot from <see cref="Save"/> or <see cref="Sequence.Save"/>.</param>
        /// <param name="policy">Policy of the sequences, as for <see cref="Sequence.Recode"/>; null: the cache's.
        /// </param>
        /// <param name="recode">Write pages in other formats than the policy's anew, instead of throwing.</param>
        /// <returns>The sequences.</returns>
        public Sequence[] Load(byte[] snapshot, Policy policy = null, bool recode = false)
        {
            fixed (byte* start = Files.NotEmpty(snapshot, nameof(snapshot)))
                return Load(start, snapshot.Length, policy, recode);
        }

        Sequence[] Load(byte* snapshot, int size, Policy policy, bool recode)
        {
            var error = Call.Error();
            using (Use it = Use())
            using (new UseMany(Policy.Used(policy), alone: false))
            {
                kvq_load_options options = Options(policy, recode);
                var made = new IntPtr[Contents(it, snapshot, size, &options).NSequences];
                SequenceHandle[] handles = Array.ConvertAll(made, one => new SequenceHandle());
                Status status;
                fixed (IntPtr* start = made)
                    status = Native.kvq_cache_load(it, snapshot, (UIntPtr)size, start, made.Length, &options, &error);
                for (int i = 0; i < made.Length; ++i) handles[i].Take(made[i]);
                try
                {
                    Call.Check(status, &error, Hooks);
                }
                catch
                {
                    foreach (SequenceHandle handle in handles) handle.Dispose();
                    throw;
                }
                return Array.ConvertAll(handles, handle => new Sequence(this, handle));
            }
        }

        /// <summary>Create a sequence from a snapshot of one; see <see cref="Native.kvq_sequence_load"/>.</summary>
        /// <param name="snapshot">A snapshot from <see cref="Sequence.Save"/>.</param>
        /// <returns>The sequence.</returns>
        public Sequence LoadSequence(byte[] snapshot)
        {
            var handle = new SequenceHandle();
            Files.Load(this, snapshot, nameof(snapshot), handle, Native.kvq_sequence_load);
            return new Sequence(this, handle);
        }

        /// <summary>Tell what a snapshot holds, and what <see cref="Load(byte[], Policy, bool)"/> takes with the same
        /// arguments; see <see cref="Native.kvq_snapshot_describe"/>.</summary>
        /// <param name="snapshot">A snapshot from <see cref="Save"/> or <see cref="Sequence.Save"/>.</param>
        /// <param name="policy">Null: the cache's.</param>
        /// <param name="recode">Whether pages in other formats than the policy's may be written anew.</param>
        /// <returns>The contents.</returns>
        public SnapshotInfo DescribeSnapshot(byte[] snapshot, Policy policy = null, bool recode = false)
        {
            fixed (byte* start = Files.NotEmpty(snapshot, nameof(snapshot)))
                return DescribeSnapshot(start, snapshot.Length, policy, recode);
        }

        SnapshotInfo DescribeSnapshot(byte* snapshot, int size, Policy policy, bool recode)
        {
            using (Use it = Use())
            using (new UseMany(Policy.Used(policy), alone: false))
            {
                kvq_load_options options = Options(policy, recode);
                return Contents(it, snapshot, size, &options);
            }
        }

        SnapshotInfo Contents(IntPtr it, byte* snapshot, int size, kvq_load_options* options)
        {
            var error = Call.Error();
            var raw = new kvq_snapshot_info { struct_size = (uint)sizeof(kvq_snapshot_info) };
            Call.Check(Native.kvq_snapshot_describe(it, snapshot, (UIntPtr)size, options, &raw, &error), &error, Hooks);
            return new SnapshotInfo(&raw);
        }

        /// Valid while the policy is entered.
        static kvq_load_options Options(Policy policy, bool recode)
        {
            var options = default(kvq_load_options);
            Native.kvq_load_options_init(&options, (UIntPtr)sizeof(kvq_load_options));
            options.policy = Policy.Pointer(policy);
            options.recode = recode ? 1 : 0;
            return options;
        }
    }

    public sealed unsafe partial class Policy
    {
        static readonly NativeObject[] None = new NativeObject[0];

        /// What a call enters that may be given a policy.
        internal static NativeObject[] Used(Policy policy) => policy == null ? None : new NativeObject[] { policy };

        /// Null stands for none.
        internal static IntPtr Pointer(Policy policy) =>
            policy == null ? IntPtr.Zero : policy.Handle.DangerousGetHandle();
    }
}
