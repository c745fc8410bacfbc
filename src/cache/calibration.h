// Scales of channels that a sequence finds by its own first tokens (docs/numerics.md).
#pragma once

#include "backend/attention.h"
#include "cache/backend_memory.h"
#include "core/memory.h"

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace kvq {

class Cache;
class Sequence;
struct Storage;
struct Page;

/// Tokens that a layer waits for in FP16, more until there are different ones among them, and then at most.
inline constexpr int32_t kCalibrationTokens = 128;
inline constexpr int32_t kMostCalibrationTokens = 2048;

/// Scales of one layer. Forks share them.
class FoundScales {
 public:
  /// `numbers`: as LayerScales::numbers; `tokens`: first ones by which they were found.
  FoundScales(Cache& cache, Vector<float> numbers, int32_t tokens);

  LayerScales view() const { return {reinterpret_cast<const float*>(memory_.data())}; }
  std::span<const float> numbers() const { return numbers_; }
  int32_t tokens() const { return tokens_; }
  uint64_t bytes() const { return sizeof(*this) + 2 * numbers_.size() * sizeof(float); }

 private:
  Vector<float> numbers_;
  BackendMemory memory_;
  int32_t tokens_;
};

/// Squares of the queries of a layer's first tokens, for every number of tokens that may be waited for.
class QueryEnergies {
 public:
  explicit QueryEnergies(Allocator& allocator) : sums_(allocator) {}

  /// Count the queries of one sequence of the batch, by ascending positions, that have not been counted.
  void add(const AttendBatch& batch, const AttendSequence& sequence, Pages& pages, Allocator& scratch);
  /// [kv_heads][head_dim] sums over the first `tokens` tokens; empty without queries.
  Vector<double> sums(int32_t tokens, Allocator& allocator) const;
  uint64_t bytes() const { return sums_.capacity() * sizeof(double); }
  void truncate(int32_t length) noexcept;
  void drop() noexcept;

 private:
  static constexpr size_t kParts = 5;
  static size_t part_of(int32_t position);

  Vector<double> sums_;  // [kParts][kv_heads * head_dim]
  int32_t next_ = 0;     // position after the last query that was counted
};

/// What a sequence knows of the scales of its layers.
class Calibration {
 public:
  struct Layer {
    explicit Layer(Allocator& allocator) : queries(allocator) {}

    std::shared_ptr<const FoundScales> scales;  // null: none yet, or none at all
    bool given_up = false;                      // its tokens are too alike
    bool backlog = false;                       // pages in FP16 that are to be sealed now
    QueryEnergies queries;
  };

  explicit Calibration(Cache& cache);
  /// Of a fork.
  Calibration(Cache& cache, const Calibration& parent);

  Layer& layer(int32_t index) { return layers_[static_cast<size_t>(index)]; }
  const Layer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  /// The first `length` tokens of every layer stay. `found_anew`: without tokens, there are new scales to be found.
  void truncate(int32_t length, bool found_anew) noexcept;
  uint64_t bytes() const;
  /// The same of a sequence of so many tokens.
  static uint64_t table_bytes(const Cache& cache);
  static uint64_t bytes_of(const Cache& cache, const Storage& storage, int32_t tokens);

  /// Held while queries are counted: several threads may attend.
  mutable std::mutex mutex;

 private:
  Vector<Layer> layers_;
};

/// Queries of a batch, counted for a sequence that waits for scales; not counted unless kept.
class ObservedQueries {
 public:
  ObservedQueries(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry);
  ObservedQueries(ObservedQueries&& other) noexcept;
  ObservedQueries& operator=(ObservedQueries&&) = delete;
  ~ObservedQueries();

  void keep() noexcept { queries_ = nullptr; }

 private:
  Calibration* calibration_;
  QueryEnergies* queries_;  // of the sequence; null: nothing to take back
  QueryEnergies before_;
};

/// A layer's step from waiting to scaled pages, if it has waited long enough: its FP16 pages written anew, prepared
/// before anything changes.
class Calibrator {
 public:
  /// Null if there is nothing to do.
  static std::optional<Calibrator> prepare(Sequence& sequence, int32_t layer);
  Calibrator(Calibrator&& other) noexcept;
  Calibrator& operator=(Calibrator&&) = delete;
  ~Calibrator();

  void commit() noexcept { exchange(); }
  void undo() noexcept { exchange(); }
  /// When it will not be undone.
  void forget_queries() noexcept;

 private:
  Calibrator(Sequence& sequence, int32_t layer);
  void exchange() noexcept;
  void scale_pages();

  Sequence* sequence_;
  int32_t layer_;
  std::shared_ptr<const FoundScales> other_scales_;
  bool other_given_up_ = false;
  bool other_backlog_ = true;
  Vector<Page*> other_pages_;  // of all lists of the layer, one after the other; empty if they stay
};

/// All layers or sequences of a call; undone unless kept.
class Calibrators {
 public:
  explicit Calibrators(Allocator& allocator) : made_(allocator) {}
  Calibrators(const Calibrators&) = delete;
  Calibrators& operator=(const Calibrators&) = delete;
  ~Calibrators();

  void add(Sequence& sequence, int32_t layer);
  void keep() noexcept;

 private:
  Vector<Calibrator> made_;
};

/// Let all layers that wait find their scales, or give up: their pages will be sealed whatever tokens come.
void calibrate_now(Sequence& sequence);

/// Throws KVQ_E_STATE if some layer still waits for scales.
void require_calibrated(const Sequence& sequence, const char* what);

}  // namespace kvq
