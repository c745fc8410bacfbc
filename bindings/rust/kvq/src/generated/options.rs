// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! Setters of options: `setters!(kvq_cache_options)` inside an `impl` of what has the struct as `raw`.

macro_rules! setters {
    (kvq_context_options) => {
        /// [`Device::Cpu`](crate::Device::Cpu) by default.
        #[must_use]
        pub fn device(mut self, device: $crate::Device) -> Self {
            self.raw.device = device.code();
            self
        }

        /// Threads for one call, the caller's included; 1 (default) starts none. At most 1024. Ignored when
        /// `parallel_for` is set.
        #[must_use]
        pub fn n_threads(mut self, n_threads: usize) -> Self {
            self.raw.n_threads = $crate::convert::int(n_threads);
            self
        }

        /// Limit on everything allocated through the context, on the host and on the device together, the context
        /// included; 0 (default): none.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: u64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }

        /// Ordinal of the GPU; 0 by default.
        #[must_use]
        pub fn device_index(mut self, device_index: usize) -> Self {
            self.raw.device_index = $crate::convert::int(device_index);
            self
        }
    };
    (kvq_cache_options) => {
        /// 1 … 65536.
        #[must_use]
        pub fn n_layers(mut self, n_layers: usize) -> Self {
            self.raw.n_layers = $crate::convert::int(n_layers);
            self
        }

        /// Query heads, 1 … 65536; a multiple of `kv_heads`.
        #[must_use]
        pub fn q_heads(mut self, q_heads: usize) -> Self {
            self.raw.q_heads = $crate::convert::int(q_heads);
            self
        }

        /// Key/value heads, 1 … 4096.
        #[must_use]
        pub fn kv_heads(mut self, kv_heads: usize) -> Self {
            self.raw.kv_heads = $crate::convert::int(kv_heads);
            self
        }

        /// A multiple of 8, 8 … 256.
        #[must_use]
        pub fn head_dim(mut self, head_dim: usize) -> Self {
            self.raw.head_dim = $crate::convert::int(head_dim);
            self
        }

        /// [`Rope::Half`](crate::Rope::Half) by default.
        #[must_use]
        pub fn rope(mut self, rope: $crate::Rope) -> Self {
            self.raw.rope = rope.code();
            self
        }

        /// Leading channels that are rotated, even; 0 (default): `head_dim`.
        #[must_use]
        pub fn rotary_dim(mut self, rotary_dim: usize) -> Self {
            self.raw.rotary_dim = $crate::convert::int(rotary_dim);
            self
        }

        /// 10000 by default; frequencies must be finite. Unused when `inv_freq` is given.
        #[must_use]
        pub fn rope_base(mut self, rope_base: f32) -> Self {
            self.raw.rope_base = rope_base;
            self
        }

        /// Factor on q·k; 0 (default): 1 / sqrt(head_dim).
        #[must_use]
        pub fn scale(mut self, scale: f32) -> Self {
            self.raw.scale = scale;
            self
        }

        /// Limit on what this cache allocates, its own object included; 0 (default): only the context's.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: u64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }

        /// Any number that identifies the model's weights; snapshots of another one are refused.
        #[must_use]
        pub fn model_id(mut self, model_id: u64) -> Self {
            self.raw.model_id = model_id;
            self
        }
    };
    (kvq_append_batch) => {
        /// Elements from a token's keys to the next one's, not negative; 0 (default): dense, as many as its heads take.
        /// The channels of a head are always neighbours, and rows need no more alignment than their elements.
        #[must_use]
        pub fn k_token_stride(mut self, k_token_stride: usize) -> Self {
            self.raw.k_token_stride = $crate::convert::long(k_token_stride);
            self
        }

        /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
        #[must_use]
        pub fn k_head_stride(mut self, k_head_stride: usize) -> Self {
            self.raw.k_head_stride = $crate::convert::long(k_head_stride);
            self
        }

        /// As for keys.
        #[must_use]
        pub fn v_token_stride(mut self, v_token_stride: usize) -> Self {
            self.raw.v_token_stride = $crate::convert::long(v_token_stride);
            self
        }

        /// As for keys.
        #[must_use]
        pub fn v_head_stride(mut self, v_head_stride: usize) -> Self {
            self.raw.v_head_stride = $crate::convert::long(v_head_stride);
            self
        }
    };
    (kvq_compress_options) => {
        /// Tokens of a KV head that are kept on average; 0 (default): the policy's.
        #[must_use]
        pub fn budget(mut self, budget: usize) -> Self {
            self.raw.budget = $crate::convert::int(budget);
            self
        }
    };
    (kvq_attend_batch) => {
        /// A query at position p sees positions \> p − window; 0 (default): all.
        #[must_use]
        pub fn sliding_window(mut self, sliding_window: usize) -> Self {
            self.raw.sliding_window = $crate::convert::int(sliding_window);
            self
        }

        /// cap·tanh(logit / cap); 0 (default): none.
        #[must_use]
        pub fn logit_softcap(mut self, logit_softcap: f32) -> Self {
            self.raw.logit_softcap = logit_softcap;
            self
        }

        /// Elements from a query's row to the next one's, not negative; 0 (default): dense, as many as its heads take.
        /// The channels of a head are always neighbours, and rows need no more alignment than their elements.
        #[must_use]
        pub fn q_token_stride(mut self, q_token_stride: usize) -> Self {
            self.raw.q_token_stride = $crate::convert::long(q_token_stride);
            self
        }

        /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
        #[must_use]
        pub fn q_head_stride(mut self, q_head_stride: usize) -> Self {
            self.raw.q_head_stride = $crate::convert::long(q_head_stride);
            self
        }

        /// As for queries. No two rows may overlap: all heads of a query lie before the next query's (token stride ≥
        /// (q_heads − 1) · head stride + head_dim), or all queries of a head before the next head's. What is between is
        /// left alone.
        #[must_use]
        pub fn output_token_stride(mut self, output_token_stride: usize) -> Self {
            self.raw.output_token_stride = $crate::convert::long(output_token_stride);
            self
        }

        /// As for queries.
        #[must_use]
        pub fn output_head_stride(mut self, output_head_stride: usize) -> Self {
            self.raw.output_head_stride = $crate::convert::long(output_head_stride);
            self
        }
    };
    (qp_quantize_options) => {
        /// Of the signs; 1 by default.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.raw.seed = seed;
            self
        }

        /// What the Hessian is for; [`Rounding::Ldlq`](crate::Rounding::Ldlq) by default.
        #[must_use]
        pub fn rounding(mut self, rounding: $crate::Rounding) -> Self {
            self.raw.rounding = rounding.code();
            self
        }

        /// Share of the Hessian's mean diagonal that is added to its diagonal, 0 … 1; 0.01 by default.
        #[must_use]
        pub fn damping(mut self, damping: f64) -> Self {
            self.raw.damping = damping;
            self
        }
    };
}
pub(crate) use setters;
