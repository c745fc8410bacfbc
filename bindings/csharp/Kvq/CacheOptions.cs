namespace Kvq
{
    public sealed partial class CacheOptions
    {
        /// <summary>Radians per position, half as many as channels are rotated; null (default):
        /// rope_base^(-2j / rotary_dim).</summary>
        public float[] InvFreq { get; set; }

        /// <summary>What the format commvq of a policy needs; null (default): none. Any number of caches share
        /// it.</summary>
        public Codebook Codebook { get; set; }

        /// <summary>What formats with trained centres need; null (default): none. Any number of caches share
        /// them.</summary>
        public Centres Centres { get; set; }

        /// <summary>What "router" in a policy needs; null (default): none. Any number of caches share it.</summary>
        public Router Router { get; set; }

        /// What a call with these options uses.
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

        /// The raw options while `frequencies` is pinned and what is used is entered.
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
