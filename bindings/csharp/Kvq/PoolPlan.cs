using System;
using Kvq.Raw;

namespace Kvq
{
    public abstract partial class PoolBatchBase
    {
        internal PoolBatchBase() { }

        /// <summary>Sequences of a <see cref="DevicePoolBatch"/>; a <see cref="PoolBatch"/> has as many as lengths.
        /// </summary>
        public int NSequences
        {
            get => raw.n_sequences;
            set => raw.n_sequences = value;
        }
    }

    /// <remarks>A call may be reused, by one thread at a time.</remarks>
    public abstract partial class PoolCallBase
    {
        internal PoolCallBase() { }
    }

    /// <summary>Memory for calls on a pool, and the batch that they work on. Its calls run one at a time; those of
    /// other plans may run meanwhile, on blocks and tails that this one does not write to.</summary>
    public sealed unsafe class PoolPlan : NativeObject
    {
        static readonly PoolFunction AppendFunction = Native.kvq_pool_append;
        static readonly PoolFunction AttendFunction = Native.kvq_pool_attend;
        static readonly PoolFunction ExtendFunction = Native.kvq_pool_extend;

        readonly int maxBlocks;
        int tokens; // of the planned batch; 0: none is planned

        /// <summary>Create a plan with memory for all calls within the limits; see
        /// <see cref="Native.kvq_pool_plan_create"/>. An engine needs one, or one for each thread.</summary>
        /// <param name="pool">The pool, which may be disposed of before the plan.</param>
        /// <param name="maxSequences">Sequences of a batch.</param>
        /// <param name="maxTokens">New tokens of all sequences of a batch.</param>
        /// <param name="maxBlocks">Blocks of one sequence.</param>
        /// <param name="maxQueries">New tokens of one sequence; 0: as many as <paramref name="maxTokens"/>.</param>
        public PoolPlan(Pool pool, int maxSequences, int maxTokens, int maxBlocks, int maxQueries = 0)
            : this(pool, new PoolPlanHandle(), maxSequences, maxTokens, maxBlocks, maxQueries) { }

        PoolPlan(Pool pool, PoolPlanHandle handle, int maxSequences, int maxTokens, int maxBlocks, int maxQueries)
            : base(handle, Create(pool, handle, maxSequences, maxTokens, maxBlocks, maxQueries))
        {
            Pool = pool;
            this.maxBlocks = maxBlocks;
        }

        static Hooks Create(Pool pool, PoolPlanHandle handle, int maxSequences, int maxTokens, int maxBlocks,
            int maxQueries)
        {
            if (pool == null) throw new ArgumentNullException(nameof(pool));
            var raw = default(kvq_pool_limits);
            Native.kvq_pool_limits_init(&raw, (UIntPtr)sizeof(kvq_pool_limits));
            raw.max_sequences = maxSequences;
            raw.max_tokens = maxTokens;
            raw.max_blocks = maxBlocks;
            raw.max_queries = maxQueries;
            kvq_pool_limits* limits = &raw;
            Call.Create(pool, handle, (it, result, error) => Native.kvq_pool_plan_create(it, limits, result, error));
            return pool.Hooks;
        }

        /// <summary>The pool; it may have been disposed of.</summary>
        public Pool Pool { get; }

        /// <summary>Get the bytes that the plan has allocated; see <see cref="Native.kvq_pool_plan_bytes"/>.</summary>
        /// <returns>The bytes, which count as the context's.</returns>
        public ulong Bytes()
        {
            using (Use it = Use()) return Native.kvq_pool_plan_bytes(it);
        }

        /// <summary>Find the pages of a batch, once for the calls on all layers; see
        /// <see cref="Native.kvq_pool_plan_batch"/>.</summary>
        /// <param name="batch">The sequences. Unless its tokens are given, they are the end of its query
        /// starts.</param>
        public void Batch(PoolBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.Host(Pool.Cache.Context.Device, nameof(Batch));
            if (batch.QueryStarts == null) throw new ArgumentNullException(nameof(batch.QueryStarts));
            if (batch.Lengths == null) throw new ArgumentNullException(nameof(batch.Lengths));
            if (batch.BlockTable == null) throw new ArgumentNullException(nameof(batch.BlockTable));
            int n = batch.Lengths.Length;
            long stride = batch.TableStride == 0 ? maxBlocks : batch.TableStride;
            Shape.Numbers(batch.QueryStarts, n + 1L, nameof(batch.QueryStarts), "[sequences + 1]");
            Shape.Numbers(batch.BlockTable, n * stride, nameof(batch.BlockTable), "[sequences, TableStride]");
            Shape.Numbers(batch.Tails, n, nameof(batch.Tails), "[sequences]");
            kvq_pool_batch raw = batch.raw;
            raw.n_sequences = n;
            if (raw.n_tokens == 0) raw.n_tokens = batch.QueryStarts[n];
            fixed (int* starts = batch.QueryStarts, lengths = batch.Lengths, table = batch.BlockTable,
                tails = batch.Tails)
            {
                raw.query_starts = starts;
                raw.lengths = lengths;
                raw.block_table = table;
                raw.tails = tails;
                Batch(raw);
            }
        }

        /// <summary>Like <see cref="Batch(PoolBatch)"/>, by arrays in device memory, which the context's stream reads
        /// in order: they must live until the stream has done so, and as long as CUDA graphs that have captured
        /// this.</summary>
        /// <param name="batch">The sequences.</param>
        public void BatchDevice(DevicePoolBatch batch)
        {
            if (batch == null) throw new ArgumentNullException(nameof(batch));
            Shape.OnDevice(Pool.Cache.Context.Device, nameof(BatchDevice));
            kvq_pool_batch raw = batch.raw;
            raw.query_starts = (int*)batch.QueryStarts;
            raw.lengths = (int*)batch.Lengths;
            raw.block_table = (int*)batch.BlockTable;
            raw.tails = (int*)batch.Tails;
            Batch(raw);
        }

        void Batch(kvq_pool_batch raw)
        {
            var error = Call.Error();
            using (Use it = Use(alone: true))
            {
                tokens = 0;
                Status status = Native.kvq_pool_plan_batch(it, &raw, &error);
                if (status == Status.Ok) tokens = raw.n_tokens;
                Call.Check(status, &error, Hooks);
            }
        }

        /// <summary>Store the new tokens of the batch in a layer; see <see cref="Native.kvq_pool_append"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The tokens.</param>
        public void Append(int layer, PoolCall call) => Run(AppendFunction, nameof(Append), layer, call, true, false);

        /// <summary>Like <see cref="Append(int, PoolCall)"/>, from device memory, which the context's stream reads in
        /// order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The tokens.</param>
        public void AppendDevice(int layer, DevicePoolCall call) =>
            RunDevice(AppendFunction, nameof(AppendDevice), layer, call);

        /// <summary>Attend with the queries of the batch's newest tokens, which the layer, or the one whose pages it
        /// reads, holds; see <see cref="Native.kvq_pool_attend"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The queries, and where their results go.</param>
        public void Attend(int layer, PoolCall call) => Run(AttendFunction, nameof(Attend), layer, call, false, true);

        /// <summary>Like <see cref="Attend(int, PoolCall)"/>, in device memory, which the context's stream uses in
        /// order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The queries, and where their results go.</param>
        public void AttendDevice(int layer, DevicePoolCall call) =>
            RunDevice(AttendFunction, nameof(AttendDevice), layer, call);

        /// <summary>Store the new tokens of the batch in a layer and attend with their queries, which see them as they
        /// are given; see <see cref="Native.kvq_pool_extend"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The tokens, their queries, and where results go.</param>
        public void Extend(int layer, PoolCall call) => Run(ExtendFunction, nameof(Extend), layer, call, true, true);

        /// <summary>Like <see cref="Extend(int, PoolCall)"/>, in device memory, which the context's stream uses in
        /// order: it must live until the stream has done so.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="call">The tokens, their queries, and where results go.</param>
        public void ExtendDevice(int layer, DevicePoolCall call) =>
            RunDevice(ExtendFunction, nameof(ExtendDevice), layer, call);

        delegate Status PoolFunction(IntPtr plan, int layer, kvq_pool_call* call, kvq_error* error);

        void Run(PoolFunction function, string method, int layer, PoolCall call, bool stores, bool attends)
        {
            if (call == null) throw new ArgumentNullException(nameof(call));
            Shape.Host(Pool.Cache.Context.Device, method);
            if (!stores && !(call.K.IsNull && call.V.IsNull))
                throw new ArgumentException("K or V is given; " + method + " stores no tokens", nameof(call));
            if (!attends && !(call.Q.IsNull && call.Output.IsNull))
                throw new ArgumentException("Q or Output is given; " + method + " has no queries", nameof(call));
            LayerInfo shape = Pool.Cache.Layer(layer);
            var error = Call.Error();
            using (Use it = Use(alone: true))
            {
                kvq_pool_call raw = call.raw;
                raw.n_tokens = Rows();
                Tensor v = !stores ? call.V : Cache.CheckKeysAndValues(shape, tokens, call.K, call.KTokenStride,
                    call.KHeadStride, call.V, call.VTokenStride, call.VHeadStride);
                if (attends)
                {
                    Cache.CheckQueriesAndOutput(shape, tokens, call.Q, call.QTokenStride, call.QHeadStride, call.Output,
                        call.OutputTokenStride, call.OutputHeadStride);
                    Cache.CheckSums(shape, tokens, call.Lse, call.Sinks);
                    Cache.CheckMask(tokens, call.Mask, call.MaskSlots);
                }
                raw.dtype = call.K.Dtype;
                raw.q_dtype = call.Q.Dtype;
                raw.output_dtype = call.Output.Dtype;
                fixed (float* kFloats = call.K.Floats, vFloats = v.Floats, qFloats = call.Q.Floats,
                    outputFloats = call.Output.Floats, lse = call.Lse, sinks = call.Sinks)
                fixed (ushort* kBits = call.K.Bits, vBits = v.Bits, qBits = call.Q.Bits,
                    outputBits = call.Output.Bits)
                fixed (uint* mask = call.Mask)
                {
                    raw.k = call.K.Start(kFloats, kBits);
                    raw.v = v.Start(vFloats, vBits);
                    raw.q = call.Q.Start(qFloats, qBits);
                    raw.output = call.Output.Start(outputFloats, outputBits);
                    raw.lse = lse;
                    raw.sinks = sinks;
                    raw.mask = mask;
                    Call.Check(function(it, layer, &raw, &error), &error, Hooks);
                }
            }
        }

        void RunDevice(PoolFunction function, string method, int layer, DevicePoolCall call)
        {
            if (call == null) throw new ArgumentNullException(nameof(call));
            Shape.OnDevice(Pool.Cache.Context.Device, method);
            kvq_pool_call raw = call.raw;
            raw.k = (void*)call.K;
            raw.v = (void*)call.V;
            raw.q = (void*)call.Q;
            raw.output = (void*)call.Output;
            raw.lse = (float*)call.Lse;
            raw.sinks = (float*)call.Sinks;
            raw.mask = (uint*)call.Mask;
            var error = Call.Error();
            using (Use it = Use(alone: true))
            {
                raw.n_tokens = Rows();
                Call.Check(function(it, layer, &raw, &error), &error, Hooks);
            }
        }

        int Rows()
        {
            if (tokens == 0) throw new InvalidOperationException("The plan has no batch");
            return tokens;
        }
    }
}
