/// Step of some sequences, begun by Cache::begin_step: appends to all layers, which `commit` keeps. Unless `commit` or
/// `abort` has ended it, the destructor aborts and drops errors. The sequences must live until the step ends.
class Step {
 public:
  Step() noexcept = default;
  /// Begin a step; see Cache::begin_step.
  Step(detail::Borrowed<kvq_cache> cache, std::span<kvq_sequence* const> sequences,
       std::span<const int32_t> token_counts = {})
      : Step() {
    std::vector<kvq_sequence*> all(sequences.begin(), sequences.end());
    detail::require_size_or_none("token_counts", token_counts.size(), static_cast<int64_t>(all.size()),
                                 "as many as sequences");
    const kvq_step_batch batch = batch_of(all, token_counts);
    const detail::Outcome outcome(kvq_step_begin, cache, &batch);
    if (outcome.succeeded()) {
      cache_ = cache;
      sequences_ = std::move(all);
    }
    outcome.raise();  // if a hook has thrown, the destructor ends what has begun
  }
  Step(Step&& other) noexcept : cache_(other.cache_), sequences_(std::exchange(other.sequences_, {})) {}
  Step& operator=(Step&& other) noexcept {
    if (this == &other) return *this;
    drop();
    cache_ = other.cache_;
    sequences_ = std::exchange(other.sequences_, {});
    return *this;
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step() { drop(); }

  /// Return whether the step has begun and not ended.
  bool active() const noexcept { return !sequences_.empty(); }

  /// Keep all tokens, and end the step; see Cache::step_commit.
  /// \throws Error: as Cache::step_commit, and the step goes on; KVQ_E_STATE if it has ended.
  void commit() { end(kvq_step_commit, {}); }
  /// Keep the first `token_counts[i]` tokens of sequence i, and end the step.
  void commit(std::span<const int32_t> token_counts) {
    if (active()) {
      detail::require_size("token_counts", token_counts.size(), static_cast<int64_t>(sequences_.size()),
                           "as many as sequences");
    }
    end(kvq_step_commit, token_counts);
  }
  /// Keep `token_counts[i]` tokens of sequence i, and end the step: those with the numbers in `kept_slots`, sequence by
  /// sequence, counted from 0 in the order of appending, such as a path of a draft tree.
  void commit(std::span<const int32_t> token_counts, std::span<const int32_t> kept_slots) {
    if (active()) {
      const auto n = static_cast<int64_t>(sequences_.size());
      detail::require_size("token_counts", token_counts.size(), n, "as many as sequences");
      detail::require_size("kept_slots", kept_slots.size(), detail::sum(token_counts, static_cast<int32_t>(n)),
                           "sum(token_counts)");
    }
    end(kvq_step_commit, token_counts, kept_slots);
  }

  /// Take all tokens back, and end the step. Does nothing if it has ended.
  /// \throws Error: as Cache::step_abort.
  void abort() {
    if (active()) end(kvq_step_abort, {});
  }

 private:
  static kvq_step_batch batch_of(std::span<kvq_sequence* const> sequences, std::span<const int32_t> token_counts) {
    kvq_step_batch batch = initialised<kvq_step_batch>();
    batch.n_sequences = detail::count("sequences", sequences.size());
    batch.sequences = sequences.data();
    batch.token_counts = detail::optional(token_counts);
    return batch;
  }

  void end(kvq_status (*function)(kvq_cache*, const kvq_step_batch*, kvq_error*),
           std::span<const int32_t> token_counts, std::span<const int32_t> kept_slots = {}) {
    if (!active()) throw Error(KVQ_E_STATE, "the step has ended");
    kvq_step_batch batch = batch_of(sequences_, token_counts);
    batch.kept_slots = detail::optional(kept_slots);
    const detail::Outcome outcome(function, cache_, &batch);
    if (outcome.succeeded()) sequences_.clear();
    outcome.raise();
  }

  void drop() noexcept {
    if (!active()) return;
    const kvq_step_batch batch = batch_of(sequences_, {});
    (void)kvq_step_abort(cache_, &batch, nullptr);
    sequences_.clear();
  }

  kvq_cache* cache_ = nullptr;
  std::vector<kvq_sequence*> sequences_;
};
