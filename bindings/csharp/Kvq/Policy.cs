using System;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>Formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are evicted.
    /// Immutable.</summary>
    public sealed unsafe partial class Policy : NativeObject
    {
        internal Policy(PolicyHandle handle, Hooks hooks) : base(handle, hooks) { }

        /// <summary>Read a policy from YAML, or from the short form such as "int4+hadamard"; see
        /// <see cref="Native.kvq_policy_load"/>.</summary>
        /// <param name="context">Context that allocates its memory.</param>
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
        /// <param name="budget">Tokens that a KV head keeps on average.</param>
        /// <returns>A copy of the policy with this eviction.</returns>
        public Policy WithEviction(Context context, string method, int budget)
        {
            byte[] name = Text.Needed(method, nameof(method));
            return Copied(context, (it, result, error) =>
            {
                fixed (byte* start = name)
                    return Native.kvq_policy_with_eviction(it, Handle.DangerousGetHandle(), start, budget, result,
                        error);
            });
        }

        /// <summary>See <see cref="Native.kvq_policy_with_layer"/>.</summary>
        /// <param name="context">The policy's context.</param>
        /// <param name="firstLayer">The first of the layers.</param>
        /// <param name="lastLayer">The last of the layers.</param>
        /// <param name="keys">Name of a format, see <see cref="Native.kvq_policy_load"/>; null: unchanged.</param>
        /// <param name="values">As keys.</param>
        /// <returns>A copy of the policy with these formats.</returns>
        public Policy WithLayer(Context context, int firstLayer, int lastLayer, string keys, string values = null)
        {
            byte[] ofKeys = Text.Bytes(keys, nameof(keys)), ofValues = Text.Bytes(values, nameof(values));
            return Copied(context, (it, result, error) =>
            {
                fixed (byte* k = ofKeys, v = ofValues)
                    return Native.kvq_policy_with_layer(it, Handle.DangerousGetHandle(), firstLayer, lastLayer, k, v,
                        result, error);
            });
        }

        Policy Copied(Context context, CreateCall call)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            var handle = new PolicyHandle();
            using (Use()) Call.Create(context, handle, call);
            return new Policy(handle, context.Hooks);
        }
    }
}
