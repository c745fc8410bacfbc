using System;
using Kvq.Raw;

namespace Kvq.Experimental
{
    /// <summary>Trains centres from keys and values that the caller's engine computed on some texts.</summary>
    public sealed unsafe class CentresTrainer : NativeObject
    {
        readonly long row;

        /// <summary>See <see cref="ExperimentalNative.kvq_centres_trainer_create"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="options">What centres are trained for.</param>
        public CentresTrainer(Context context, CentresTrainerOptions options)
            : this(context, options, new CentresTrainerHandle()) { }

        CentresTrainer(Context context, CentresTrainerOptions options, CentresTrainerHandle handle)
            : base(handle, Create(context, options, handle)) => row = (long)options.KvHeads * options.HeadDim;

        static Hooks Create(Context context, CentresTrainerOptions options, CentresTrainerHandle handle)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (options == null) throw new ArgumentNullException(nameof(options));
            byte[] note = Text.Bytes(options.Note, "Note");
            kvq_centres_trainer_options raw = options.raw;
            var error = Call.Error();
            IntPtr result, it = context.Enter();
            try
            {
                fixed (byte* text = note)
                {
                    raw.note = text;
                    Call.Check(ExperimentalNative.kvq_centres_trainer_create(it, &raw, &result, &error), &error,
                               context.Hooks, handle, result);
                }
            }
            finally
            {
                context.Leave();
            }
            return context.Hooks;
        }

        /// <summary>Add tokens to a layer; see <see cref="ExperimentalNative.kvq_centres_trainer_add"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="k">Keys before RoPE, [tokens, kv_heads, head_dim]; null without centres for keys.</param>
        /// <param name="v">Values, of the same shape and type; null without centres for values.</param>
        public void Add(int layer, Tensor k, Tensor v)
        {
            Tensor shown = k.IsNull ? v : k;
            int tokens = Shape.Rows(shown, row, k.IsNull ? "v" : "k", "[tokens, kv_heads, head_dim]");
            if (!k.IsNull && !v.IsNull)
            {
                Shape.Exactly(v, k.Length, "v", "[tokens, kv_heads, head_dim]");
                Shape.Same(k.Dtype, v.Dtype, "v", "k");
            }
            var error = Call.Error();
            IntPtr it = Enter(alone: true);
            try
            {
                fixed (float* kFloats = k.Floats, vFloats = v.Floats)
                fixed (ushort* kBits = k.Bits, vBits = v.Bits)
                    Call.Check(ExperimentalNative.kvq_centres_trainer_add(
                        it, layer, tokens, k.Start(kFloats, kBits), v.Start(vFloats, vBits), shown.Dtype, &error),
                        &error, Hooks);
            }
            finally
            {
                Leave();
            }
        }

        /// <summary>Train one layer; see <see cref="ExperimentalNative.kvq_centres_trainer_run"/>.</summary>
        /// <param name="layer">The layer.</param>
        /// <param name="progress">Told how far it has come, 0 … 1; false ends the call with
        /// <see cref="Status.Cancelled"/>. May not use the trainer.</param>
        public void Run(int layer, Func<double, bool> progress = null)
        {
            var error = Call.Error();
            IntPtr it = Enter(alone: true);
            try
            {
                using (var hook = new Progress(progress))
                {
                    Status status = ExperimentalNative.kvq_centres_trainer_run(it, layer, hook.Function, hook.User,
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

        /// <summary>See <see cref="ExperimentalNative.kvq_centres_trainer_result"/>.</summary>
        /// <returns>The centres of the layers finished so far.</returns>
        public Centres Result()
        {
            var error = Call.Error();
            var handle = new CentresHandle();
            IntPtr result, it = Enter();
            try
            {
                Call.Check(ExperimentalNative.kvq_centres_trainer_result(it, &result, &error), &error, Hooks, handle,
                    result);
            }
            finally
            {
                Leave();
            }
            return new Centres(handle, Hooks);
        }
    }
}
