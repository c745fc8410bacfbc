/// Sequences of a pool, for PoolPlan::batch. The arrays are in the context's memory: for a CUDA context in device
/// memory, where they are read in stream order and may change in place between replays of a CUDA graph.
struct PoolBatch {
  /// `[n + 1]`: the first row of each of n sequences, from 0 on and ascending, and the end: the rows between are its
  /// newest tokens.
  std::span<const int32_t> query_starts = {};
  /// Tokens of each sequence, new ones included. Token t is at position t.
  std::span<const int32_t> lengths = {};
  /// `[n, table_stride]`: numbers of each sequence's blocks, in order. New tokens go to blocks that no other sequence
  /// of the batch writes to.
  std::span<const int32_t> block_table = {};
  /// Numbers from one row to the next; 0 (default): the plan's `max_blocks`.
  int64_t table_stride = 0;
  /// The tail of each sequence; read only for sequences that have new tokens or a page that is not full. Empty
  /// (default): the pool has no tails.
  std::span<const int32_t> tails = {};
  /// Rows of the calls' tensors, at least the new tokens of all sequences; 0 (default): the end of `query_starts`, for
  /// contexts on a CPU.
  int32_t n_tokens = 0;
  /// Most new tokens of a sequence; 0 (default): the plan's limit, and `n_tokens` if that is less.
  int32_t max_queries = 0;
  /// Tokens of the longest sequence; 0 (default): the plan's limit.
  int32_t max_length = 0;
};

namespace detail {

/// What batches and calls on a pool are checked against.
struct PoolShape {
  explicit PoolShape(kvq_cache* cache) {
    const auto n_layers = described<kvq_cache_info>(kvq_cache_describe, cache).n_layers;
    for (int32_t layer = 0; layer < n_layers; ++layer) {
      layers.push_back(described<kvq_layer_info>(kvq_cache_describe_layer, cache, layer));
    }
    const auto context = described<kvq_context_info>(kvq_context_describe, kvq_cache_context(cache));
    on_device = context.device != KVQ_DEVICE_CPU;
  }

  std::vector<kvq_layer_info> layers;
  bool on_device;
};

inline kvq_pool_batch c_struct(const PoolBatch& batch, const PoolShape& shape, int32_t max_blocks) {
  const int64_t stride = batch.table_stride == 0 ? max_blocks : batch.table_stride;
  kvq_pool_batch it = initialised<kvq_pool_batch>();
  it.n_sequences = count("lengths", batch.lengths.size());
  require_size("query_starts", batch.query_starts.size(), int64_t{it.n_sequences} + 1, "as many as lengths, and one");
  require_size("block_table", batch.block_table.size(), product({it.n_sequences, stride}),
               "as many as lengths * table_stride");
  require_size_or_none("tails", batch.tails.size(), it.n_sequences, "as many as lengths");
  it.n_tokens = batch.n_tokens == 0 && !shape.on_device ? batch.query_starts.back() : batch.n_tokens;
  it.max_queries = batch.max_queries;
  it.max_length = batch.max_length;
  it.query_starts = batch.query_starts.data();
  it.lengths = batch.lengths.data();
  it.block_table = batch.block_table.data();
  it.table_stride = batch.table_stride;
  it.tails = optional(batch.tails);
  return it;
}

}  // namespace detail

@kvq_pool
/// Cache::block_layout tells the sizes. The memory must live until the pool and its plans are destroyed.
class Pool : public detail::Owned<kvq_pool, kvq_pool_destroy, const kvq_pool> {
 public:
  Pool() noexcept = default;
  Pool(std::nullptr_t) noexcept : Owned(nullptr) {}

  @kvq_pool_create
  Pool(detail::Borrowed<kvq_cache> cache, const kvq_pool_options& options)
      : Owned(detail::made<Owned>(kvq_pool_create, cache, &options)),
        shape_(std::make_shared<detail::PoolShape>(cache)) {}

  @kvq_pool_read_block
  std::vector<std::byte> read_block(int32_t layer, int32_t block) const {
    return detail::saved(kvq_pool_read_block, get(), layer, block);
  }

  @kvq_pool_write_block
  void write_block(int32_t layer, int32_t block, std::span<const std::byte> buffer) {
    checked(kvq_pool_write_block, get(), layer, block, buffer.data(), buffer.size());
  }

 private:
  friend class PoolPlan;

  std::shared_ptr<const detail::PoolShape> shape_;
};

@kvq_pool_plan
class PoolPlan : public detail::Owned<kvq_pool_plan, kvq_pool_plan_destroy, const kvq_pool_plan> {
 public:
  PoolPlan() noexcept = default;
  PoolPlan(std::nullptr_t) noexcept : Owned(nullptr) {}

  @kvq_pool_plan_create
  PoolPlan(Pool& pool, const kvq_pool_limits& limits)
      : Owned(detail::made<Owned>(kvq_pool_plan_create, pool.get(), &limits)),
        shape_(pool.shape_),
        max_blocks_(limits.max_blocks) {}

  @kvq_pool_plan_bytes
  uint64_t bytes() const { return kvq_pool_plan_bytes(get()); }

  @kvq_pool_plan_batch
  void batch(const kvq_pool_batch& batch) {
    n_tokens_ = 0;
    checked(kvq_pool_plan_batch, get(), &batch);
    n_tokens_ = batch.n_tokens;
  }
  /// Overload with spans.
  void batch(const PoolBatch& given) {
    detail::require_object(get(), "plan");
    batch(detail::c_struct(given, *shape_, max_blocks_));
  }

  @kvq_pool_append
  void append(int32_t layer, const kvq_pool_call& batch) { checked(kvq_pool_append, get(), layer, &batch); }
  /// Overload with spans.
  void append(int32_t layer, const PoolCall& batch) { append(layer, c_struct(layer, batch)); }

  @kvq_pool_attend
  void attend(int32_t layer, const kvq_pool_call& batch) { checked(kvq_pool_attend, get(), layer, &batch); }
  /// Overload with spans.
  void attend(int32_t layer, const PoolCall& batch) { attend(layer, c_struct(layer, batch)); }

  @kvq_pool_extend
  void extend(int32_t layer, const kvq_pool_call& batch) { checked(kvq_pool_extend, get(), layer, &batch); }
  /// Overload with spans.
  void extend(int32_t layer, const PoolCall& batch) { extend(layer, c_struct(layer, batch)); }

 private:
  kvq_pool_call c_struct(int32_t layer, const PoolCall& batch) const {
    detail::require_object(get(), "plan");
    if (n_tokens_ == 0) throw Error(KVQ_E_STATE, "the plan has no batch");
    const size_t n_layers = shape_->layers.size();
    if (layer >= 0 && static_cast<size_t>(layer) < n_layers) {
      return detail::c_struct(batch, shape_->layers[static_cast<size_t>(layer)], n_tokens_);
    }
    throw Error(KVQ_E_ARGUMENT,
                "layer is " + std::to_string(layer) + ", the cache has " + std::to_string(n_layers) + " layers");
  }

  std::shared_ptr<const detail::PoolShape> shape_;
  int32_t max_blocks_ = 0;
  int32_t n_tokens_ = 0;  // of the planned batch
};
