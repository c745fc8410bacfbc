using System;
using System.Collections.Generic;
using Kvq.Raw;

namespace Kvq
{
    /// <summary>The attention layers of one model; owns the page formats and the workspace of attention.</summary>
    public sealed unsafe partial class Cache : NativeObject
    {
        readonly kvq_attend_batch attendDefaults;
        readonly CacheInfo info;
        readonly LayerInfo[] layers;

        /// <summary>See <see cref="Native.kvq_cache_create"/>.</summary>
        /// <param name="context">Context of the cache.</param>
        /// <param name="options">The model's shape.</param>
        /// <param name="policy">Null: fp16.</param>
        public Cache(Context context, CacheOptions options, Policy policy = null)
            : this(context, new CacheHandle(), options, policy) { }

        Cache(Context context, CacheHandle handle, CacheOptions options, Policy policy)
            : base(handle, Create(context, handle, options, policy))
        {
            Context = context;
            fixed (kvq_attend_batch* it = &attendDefaults)
                Native.kvq_attend_batch_init(it, (UIntPtr)sizeof(kvq_attend_batch));
            var raw = new kvq_cache_info { struct_size = (uint)sizeof(kvq_cache_info) };
            var error = Call.Error();
            Call.Check(Native.kvq_cache_describe(handle.DangerousGetHandle(), &raw, &error), &error, Hooks);
            info = new CacheInfo(&raw);
            layers = new LayerInfo[info.NLayers];
            for (int i = 0; i < layers.Length; ++i) layers[i] = DescribeLayer(i);
        }

        static Hooks Create(Context context, CacheHandle handle, CacheOptions options, Policy policy)
        {
            if (context == null) throw new ArgumentNullException(nameof(context));
            if (options == null) throw new ArgumentNullException(nameof(options));
            var error = Call.Error();
            IntPtr result;
            var shapes = new RawShapes(options);
            using (new UseMany(options.Used(context, policy), alone: false))
            fixed (float* frequencies = options.InvFreq, ofShapes = shapes.Frequencies)
            fixed (kvq_layer_shape* structs = shapes.Structs)
            fixed (int* sections = options.MropeSection)
            {
                kvq_cache_options raw = options.With(frequencies, sections);
                shapes.Set(ref raw, structs, ofShapes);
                Call.Check(Native.kvq_cache_create(context.Handle.DangerousGetHandle(), &raw, Policy.Pointer(policy),
                    &result, &error), &error, context.Hooks, handle, result);
            }
            return context.Hooks;
        }

        /// <summary>The context that the cache was created from; it may have been disposed of.</summary>
        public Context Context { get; }

        /// <summary>Options that the cache was created with, defaults filled in; see
        /// <see cref="Native.kvq_cache_describe"/>.</summary>
        /// <returns>The same object every time.</returns>
        public CacheInfo Describe() => info;

        /// The shape of a layer with tokens; null if there is no such layer.
        internal LayerInfo Known(int layer)
        {
            LayerInfo found = layer >= 0 && layer < layers.Length ? layers[layer] : null;
            if (found != null && found.Recurrent)
                throw new ArgumentException("layer is " + layer + ", which is recurrent and holds no tokens",
                    nameof(layer));
            return found;
        }

        /// The shape of a layer; another one is refused by the library.
        internal LayerInfo Layer(int layer) => Known(layer) ?? DescribeLayer(layer);

        /// <summary>Get the bytes used by the whole cache, with shared pages counted once; see
        /// <see cref="Native.kvq_cache_usage"/>. Waits for all calls on its sequences.</summary>
        /// <returns>The memory in use, by purpose.</returns>
        public Usage Usage()
        {
            var error = Call.Error();
            var raw = new kvq_usage { struct_size = (uint)sizeof(kvq_usage) };
            using (Use it = Use(alone: true))
                Call.Check(Native.kvq_cache_usage(it, IntPtr.Zero, &raw, &error), &error, Hooks);
            return new Usage(&raw);
        }

        /// <summary>Predict, to the byte, the <see cref="Usage"/> of a cache that holds only new sequences; see
        /// <see cref="Native.kvq_cache_predict_usage"/>.</summary>
        /// <param name="sequences">At least 1.</param>
        /// <param name="tokens">Tokens per sequence.</param>
        /// <param name="queries">Queries per sequence; 0: no attention.</param>
        /// <returns>The predicted memory, by purpose.</returns>
        public Usage PredictUsage(int sequences, int tokens, int queries = 0)
        {
            var error = Call.Error();
            var raw = new kvq_usage { struct_size = (uint)sizeof(kvq_usage) };
            using (Use it = Use())
                Call.Check(Native.kvq_cache_predict_usage(it, sequences, tokens, queries, &raw, &error), &error, Hooks);
            return new Usage(&raw);
        }
    }

    public sealed partial class CacheOptions
    {
        /// Objects that a call with these options uses.
        internal NativeObject[] Used(params NativeObject[] others)
        {
            var all = new List<NativeObject>();
            foreach (NativeObject one in others)
                if (one != null) all.Add(one);
            if (Codebook != null) all.Add(Codebook);
            if (Centres != null) all.Add(Centres);
            if (Router != null) all.Add(Router);
            return UseMany.Sorted(all.ToArray(), "objects");
        }

        /// The raw options, valid while the arrays are pinned and the used objects are entered.
        internal unsafe kvq_cache_options With(float* frequencies, int* sections)
        {
            if (InvFreq != null)
                Shape.Exactly(InvFreq, (RotaryDim == 0 ? HeadDim : RotaryDim) / 2, "InvFreq", "[rotated channels / 2]");
            Shape.Numbers(MropeSection, 3, "MropeSection", "[temporal, height, width]");
            kvq_cache_options filled = raw;
            filled.inv_freq = frequencies;
            filled.mrope_section = sections;
            if (Codebook != null) filled.codebook = Codebook.Handle.DangerousGetHandle();
            if (Centres != null) filled.centres = Centres.Handle.DangerousGetHandle();
            if (Router != null) filled.router = Router.Handle.DangerousGetHandle();
            return filled;
        }
    }
}
