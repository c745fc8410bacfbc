namespace Kvq
{
    public sealed partial class CacheOptions
    {
        /// <summary>Radians per position of each rotated pair of channels; null (default): rope_base^(-2j /
        /// rotary_dim).</summary>
        public float[] InvFreq { get; set; }

        /// <summary>Codebook for the format commvq; null (default): none. Caches may share it.</summary>
        public Codebook Codebook { get; set; }

        /// <summary>Centres for formats with trained centres; null (default): none. Caches may share them.</summary>
        public Centres Centres { get; set; }

        /// <summary>Router for a policy with "router"; null (default): none. Caches may share it.</summary>
        public Router Router { get; set; }

        /// Objects that a call with these options uses.
        internal NativeObject[] Used(params NativeObject[] others)
        {
            var all = new System.Collections.Generic.List<NativeObject>();
            foreach (NativeObject one in others)
                if (one != null) all.Add(one);
            if (Codebook != null) all.Add(Codebook);
            if (Centres != null) all.Add(Centres);
            if (Router != null) all.Add(Router);
            return UseMany.Sorted(all.ToArray(), "objects");
        }

        /// The raw options, valid while `frequencies` is pinned and the used objects are entered.
        internal unsafe Raw.kvq_cache_options With(float* frequencies)
        {
            if (InvFreq != null)
                Shape.Exactly(InvFreq, (RotaryDim == 0 ? HeadDim : RotaryDim) / 2, "InvFreq", "[rotated channels / 2]");
            Raw.kvq_cache_options filled = raw;
            filled.inv_freq = frequencies;
            if (Codebook != null) filled.codebook = Codebook.Handle.DangerousGetHandle();
            if (Centres != null) filled.centres = Centres.Handle.DangerousGetHandle();
            if (Router != null) filled.router = Router.Handle.DangerousGetHandle();
            return filled;
        }
    }
}
