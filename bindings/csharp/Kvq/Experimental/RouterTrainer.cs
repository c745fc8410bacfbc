using System;
using Kvq.Raw;

namespace Kvq.Experimental
{
    /// <summary>Trains routers from queries, keys and values that the caller's engine computed on some texts.</summary>
    public sealed unsafe class RouterTrainer : NativeObject
    {
        readonly long queryRow, row;

        /// <summary>See <see cref="ExperimentalNative.kvq_router_trainer_create"/>.</summary>
        /// <param name="context">Computes on the CPU.</param>
        /// <param name="cache">What a cache of the model would be made with.</param>
        /// <param name="policy">With a router's experts, those with more bits first.</param>
        /// <param name="options">How routers are trained.</param>
        public RouterTrainer(Context context, CacheOptions cache, Policy policy, RouterTrainerOptions options)
            : this(context, cache, policy, options, new RouterTrainerHandle()) { }

        RouterTrainer(Context context, CacheOptions cache, Policy policy, RouterTrainerOptions options,
                      RouterTrainerHandle handle)
            : base(handle, Create(context, cache, policy, options, handle))
        {
            queryRow = (long)cache.QHeads * cache.HeadDim;
            row = (long)cache.KvHeads * cache.HeadDim;
        }

        static Hooks Create(Context context, CacheOptions cache, Policy policy, RouterTrainerOptions options,
                            RouterTrainerHandle handle)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (cache == null) throw new ArgumentNullException(nameof(cache));
            if (policy == null) throw new ArgumentNullException(nameof(policy));
            if (options == null) throw new ArgumentNullException(nameof(options));
            byte[] note = Text.Bytes(options.Note, "Note");
            kvq_router_trainer_options raw = options.raw;
            var error = Call.Error();
            IntPtr result;
            using (new UseMany(cache.Used(context, policy), alone: false))
            fixed (byte* text = note)
            fixed (float* frequencies = cache.InvFreq)
            {
                raw.note = text;
                kvq_cache_options shape = cache.With(frequencies);
                Call.Check(ExperimentalNative.kvq_router_trainer_create(
                    context.Handle.DangerousGetHandle(), &shape, policy.Handle.DangerousGetHandle(), &raw, &result,
                    &error), &error, context.Hooks, handle, result);
            }
            return context.Hooks;
        }

        /// <summary>Add one text to a layer; see <see cref="ExperimentalNative.kvq_router_trainer_add"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="q">Queries before RoPE, [tokens, q_heads, head_dim]; null is allowed for
        /// <see cref="RouterMethod.Paper"/>.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, head_dim].</param>
        /// <param name="v">Values, of the same shape; null is allowed for <see cref="RouterMethod.Paper"/>.</param>
        public void Add(int layer, Tensor q, Tensor k, Tensor v)
        {
            int tokens = Shape.Rows(k, row, "k", "[tokens, kv_heads, head_dim]");
            if (!q.IsNull)
            {
                Shape.Exactly(q, tokens * queryRow, "q", "[tokens, q_heads, head_dim]");
                Shape.Same(k.Dtype, q.Dtype, "q", "k");
            }
            if (!v.IsNull)
            {
                Shape.Exactly(v, k.Length, "v", "[tokens, kv_heads, head_dim]");
                Shape.Same(k.Dtype, v.Dtype, "v", "k");
            }
            var error = Call.Error();
            IntPtr it = Enter(alone: true);
            try
            {
                fixed (float* qFloats = q.Floats, kFloats = k.Floats, vFloats = v.Floats)
                fixed (ushort* qBits = q.Bits, kBits = k.Bits, vBits = v.Bits)
                    Call.Check(ExperimentalNative.kvq_router_trainer_add(
                        it, layer, tokens, q.Start(qFloats, qBits), k.Start(kFloats, kBits), v.Start(vFloats, vBits),
                        k.Dtype, &error), &error, Hooks);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>Train the routers of all layers; see
        /// <see cref="ExperimentalNative.kvq_router_trainer_run"/>.</summary>
        /// <param name="loss">For <see cref="RouterMethod.Paper"/>: the model's mean negative log-likelihood of a
        /// token.</param>
        /// <param name="progress">Told how far it has come, 0 … 1; false ends the call with
        /// <see cref="Status.Cancelled"/>. May not use the trainer.</param>
        public void Run(double loss = 0, Func<double, bool> progress = null)
        {
            var error = Call.Error();
            IntPtr it = Enter(alone: true);
            try
            {
                using (var hook = new Progress(progress))
                {
                    Status status = ExperimentalNative.kvq_router_trainer_run(it, loss, hook.Function, hook.User,
                        &error);
                    hook.Rethrow();
                    Call.Check(status, &error, Hooks);
                }
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>See <see cref="ExperimentalNative.kvq_router_trainer_result"/>.</summary>
        /// <returns>The routers.</returns>
        public Router Result()
        {
            var error = Call.Error();
            var handle = new RouterHandle();
            IntPtr result, it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_router_trainer_result(it, &result, &error), &error, Hooks, handle,
                    result);
            }
            finally
            {
                Leave();
            }
            return new Router(handle, Hooks);
        }
    }
}
