using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted.
    /// Immutable.</summary>
    public sealed unsafe partial class Policy : NativeObject
    {
        internal Policy(PolicyHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>Read a policy from YAML, or from the short form of one format such as "int4+hadamard"; see
        /// <see cref="Native.kvq_policy_load"/>.</summary>
        /// <param name="context">Where its memory comes from.</param>
        /// <param name="yaml">The text.</param>
        /// <returns>The policy.</returns>
        public static Policy Load(Context context, string yaml)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] text = Text.Needed(yaml, nameof(yaml));
            var handle = new PolicyHandle();
            Files.Load(context, text, nameof(yaml), handle, (it, buffer, size, result, error) =>
                       Native.kvq_policy_load(it, (byte*)buffer, (UIntPtr)(text.Length - 1), result, error));
            return new Policy(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_policy_with_eviction"/>.</summary>
        /// <param name="context">The policy's context.</param>
        /// <param name="method">Name of a method, see <see cref="Native.kvq_compress"/>.</param>
        /// <param name="budget">Tokens of a KV head that stay, on average.</param>
        /// <returns>A policy that evicts tokens and otherwise says what this one says.</returns>
        public Policy WithEviction(Context context, string method, int budget)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] name = Text.Needed(method, nameof(method));
            var error = Call.Error();
            var handle = new PolicyHandle();
            IntPtr result;
            using (new UseMany(UseMany.Sorted(new NativeObject[] { context, this }, "objects"), alone: false))
            fixed (byte* start = name)
                Call.Check(Native.kvq_policy_with_eviction(context.Handle.DangerousGetHandle(),
                    Handle.DangerousGetHandle(), start, budget, &result, &error), &error, context.Hooks, handle,
                    result);
            return new Policy(handle, context.Hooks);
        }

        /// <summary>See <see cref="Native.kvq_policy_with_layer"/>.</summary>
        /// <param name="context">The policy's context.</param>
        /// <param name="firstLayer">The first of the layers.</param>
        /// <param name="lastLayer">The last of them.</param>
        /// <param name="keys">Name of a format, see <see cref="Native.kvq_policy_load"/>; null: as before.</param>
        /// <param name="values">The same for values.</param>
        /// <returns>A policy that stores these layers so and otherwise says what this one says.</returns>
        public Policy WithLayer(Context context, int firstLayer, int lastLayer, string keys, string values = null)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            byte[] ofKeys = Text.Bytes(keys, nameof(keys)), ofValues = Text.Bytes(values, nameof(values));
            var error = Call.Error();
            var handle = new PolicyHandle();
            IntPtr result;
            using (new UseMany(UseMany.Sorted(new NativeObject[] { context, this }, "objects"), alone: false))
            fixed (byte* k = ofKeys, v = ofValues)
                Call.Check(Native.kvq_policy_with_layer(context.Handle.DangerousGetHandle(),
                    Handle.DangerousGetHandle(), firstLayer, lastLayer, k, v, &result, &error), &error, context.Hooks,
                    handle, result);
            return new Policy(handle, context.Hooks);
        }
    }
}
