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
    (kvq_codebook_trainer_options) => {
        /// 1 … 65536.
        #[must_use]
        pub fn n_layers(mut self, n_layers: usize) -> Self {
            self.raw.n_layers = $crate::convert::int(n_layers);
            self
        }

        /// 1 … 4096.
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

        /// [`Rope::Half`](crate::Rope::Half) by default, or [`Rope::Interleaved`](crate::Rope::Interleaved).
        #[must_use]
        pub fn rope(mut self, rope: $crate::Rope) -> Self {
            self.raw.rope = rope.code();
            self
        }

        /// 0 … 64, 0: no codes for keys. A key scalar takes key_stages · log2(key_codes) / key_group bits: with groups
        /// of 64, 11 (default) give 1.03 and 21 give 1.97.
        #[must_use]
        pub fn key_stages(mut self, key_stages: usize) -> Self {
            self.raw.key_stages = $crate::convert::int(key_stages);
            self
        }

        /// A power of two, 2 … 256; 64 by default.
        #[must_use]
        pub fn key_codes(mut self, key_codes: usize) -> Self {
            self.raw.key_codes = $crate::convert::int(key_codes);
            self
        }

        /// A divisor of head_dim / 2; 0 (default): head_dim / 2, one group a head.
        #[must_use]
        pub fn key_group(mut self, key_group: usize) -> Self {
            self.raw.key_group = $crate::convert::int(key_group);
            self
        }

        /// [`Scope::Head`](crate::Scope::Head) by default.
        #[must_use]
        pub fn key_norms(mut self, key_norms: $crate::Scope) -> Self {
            self.raw.key_norms = key_norms.code();
            self
        }

        /// 0, 1 (default) or 2, 0: no codes for values.
        #[must_use]
        pub fn value_bits(mut self, value_bits: usize) -> Self {
            self.raw.value_bits = $crate::convert::int(value_bits);
            self
        }

        /// [`Scope::Layer`](crate::Scope::Layer) by default: smaller errors, but tokens can be evicted only for all
        /// heads of a layer at once.
        #[must_use]
        pub fn value_scope(mut self, value_scope: $crate::Scope) -> Self {
            self.raw.value_scope = value_scope.code();
            self
        }

        /// Rounds of joint refinement of all stages, at most 1000; 0 (default): the library's.
        #[must_use]
        pub fn key_rounds(mut self, key_rounds: usize) -> Self {
            self.raw.key_rounds = $crate::convert::int(key_rounds);
            self
        }

        /// Rounds of least squares, or of 50 steps of the network each, at most 1000; 0 (default): the library's
        /// choice.
        #[must_use]
        pub fn value_rounds(mut self, value_rounds: usize) -> Self {
            self.raw.value_rounds = $crate::convert::int(value_rounds);
            self
        }

        /// [`ValueMethod::LeastSquares`](crate::ValueMethod::LeastSquares) by default.
        #[must_use]
        pub fn value_method(mut self, value_method: $crate::ValueMethod) -> Self {
            self.raw.value_method = value_method.code();
            self
        }

        /// Of everything random; 1 by default.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.raw.seed = seed;
            self
        }

        /// Any number that identifies the model's weights, as in [`CacheOptions`](crate::CacheOptions).
        #[must_use]
        pub fn model_id(mut self, model_id: u64) -> Self {
            self.raw.model_id = model_id;
            self
        }

        /// Limit on tokens kept and work space; 0 (default): only the context's.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: u64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }
    };
    (kvq_centres_trainer_options) => {
        /// 1 … 65536.
        #[must_use]
        pub fn n_layers(mut self, n_layers: usize) -> Self {
            self.raw.n_layers = $crate::convert::int(n_layers);
            self
        }

        /// 1 … 4096.
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

        /// That follows the keys; [`Rope::Half`](crate::Rope::Half) by default.
        #[must_use]
        pub fn rope(mut self, rope: $crate::Rope) -> Self {
            self.raw.rope = rope.code();
            self
        }

        /// Of a head, 0 … 256; 256 by default, 1: the mean, 0: none for keys.
        #[must_use]
        pub fn key_centres(mut self, key_centres: usize) -> Self {
            self.raw.key_centres = $crate::convert::int(key_centres);
            self
        }

        /// The same for values.
        #[must_use]
        pub fn value_centres(mut self, value_centres: usize) -> Self {
            self.raw.value_centres = $crate::convert::int(value_centres);
            self
        }

        /// Of k-means over all tokens, at most 1000; 0 (default): the library's choice.
        #[must_use]
        pub fn rounds(mut self, rounds: usize) -> Self {
            self.raw.rounds = $crate::convert::int(rounds);
            self
        }

        /// Of everything random; 1 by default.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.raw.seed = seed;
            self
        }

        /// Any number that identifies the model's weights, as in [`CacheOptions`](crate::CacheOptions).
        #[must_use]
        pub fn model_id(mut self, model_id: u64) -> Self {
            self.raw.model_id = model_id;
            self
        }

        /// Limit on tokens kept and work space; 0 (default): only the context's.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: u64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }
    };
    (kvq_router_trainer_options) => {
        /// [`RouterMethod::Label`](crate::RouterMethod::Label) by default.
        #[must_use]
        pub fn method(mut self, method: $crate::RouterMethod) -> Self {
            self.raw.method = method.code();
            self
        }

        /// Successive layers that share decisions, 1 … 65536; 3 by default.
        #[must_use]
        pub fn sharing(mut self, sharing: usize) -> Self {
            self.raw.sharing = $crate::convert::int(sharing);
            self
        }

        /// Passes over the keys, at most 10000; 0 (default): the library's choice.
        #[must_use]
        pub fn epochs(mut self, epochs: usize) -> Self {
            self.raw.epochs = $crate::convert::int(epochs);
            self
        }

        /// For [`RouterMethod::Label`](crate::RouterMethod::Label), which needs it: the wanted mean of true bits of a
        /// scalar over routed pages, from those of the last expert to those of the first. 0 by default.
        #[must_use]
        pub fn mean_bits(mut self, mean_bits: f64) -> Self {
            self.raw.mean_bits = mean_bits;
            self
        }

        /// For [`RouterMethod::Paper`](crate::RouterMethod::Paper): the weight of the model's loss against that of
        /// memory (the paper's λ), 0 … 1; 0.5 by default.
        #[must_use]
        pub fn loss_weight(mut self, loss_weight: f64) -> Self {
            self.raw.loss_weight = loss_weight;
            self
        }

        /// Of AdamW, above 0, at most 1; 3e-4 by default.
        #[must_use]
        pub fn learning_rate(mut self, learning_rate: f64) -> Self {
            self.raw.learning_rate = learning_rate;
            self
        }

        /// Of everything random; 1 by default.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.raw.seed = seed;
            self
        }

        /// Limit on keys kept and work space; 0 (default): only the context's.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: u64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }
    };
    (kvq_plan_problem) => {
        /// [`PlanGoal::Loss`](crate::PlanGoal::Loss) by default.
        #[must_use]
        pub fn goal(mut self, goal: $crate::PlanGoal) -> Self {
            self.raw.goal = goal.code();
            self
        }

        /// That all options taken may have together; infinity (default): any.
        #[must_use]
        pub fn max_bytes(mut self, max_bytes: f64) -> Self {
            self.raw.max_bytes = max_bytes;
            self
        }

        /// The same.
        #[must_use]
        pub fn max_seconds(mut self, max_seconds: f64) -> Self {
            self.raw.max_seconds = max_seconds;
            self
        }

        /// The same.
        #[must_use]
        pub fn max_loss(mut self, max_loss: f64) -> Self {
            self.raw.max_loss = max_loss;
            self
        }

        /// Share of the smallest goal by which the plan's may be above it, 0 … 1; 0.0001 by default.
        #[must_use]
        pub fn tolerance(mut self, tolerance: f64) -> Self {
            self.raw.tolerance = tolerance;
            self
        }
    };
    (kvq_plan_fusion_options) => {
        /// 1 … [`KVQ_MAX_FUSED`](crate::sys::KVQ_MAX_FUSED), for example 3: q, k and v.
        #[must_use]
        pub fn n_members(mut self, n_members: usize) -> Self {
            self.raw.n_members = $crate::convert::int(n_members);
            self
        }

        /// 1 … 1024.
        #[must_use]
        pub fn n_schemes(mut self, n_schemes: usize) -> Self {
            self.raw.n_schemes = $crate::convert::int(n_schemes);
            self
        }

        /// Groups that can be multiplied together, those of one member, too; 1 … 15.
        #[must_use]
        pub fn n_groups(mut self, n_groups: usize) -> Self {
            self.raw.n_groups = $crate::convert::int(n_groups);
            self
        }
    };
    (kvq_plan_content) => {
        /// Expected; finite, not negative, 0 by default.
        #[must_use]
        pub fn bytes(mut self, bytes: f64) -> Self {
            self.raw.bytes = bytes;
            self
        }

        /// The same.
        #[must_use]
        pub fn seconds(mut self, seconds: f64) -> Self {
            self.raw.seconds = seconds;
            self
        }

        /// The same.
        #[must_use]
        pub fn loss(mut self, loss: f64) -> Self {
            self.raw.loss = loss;
            self
        }
    };
}
pub(crate) use setters;
