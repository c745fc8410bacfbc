// Scales of channels that a sequence finds by its own first tokens (docs/numerics.md).
#pragma once

#include "backend/attention.h"
#include "cache/backend_memory.h"
#include "core/memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

namespace kvq {

class Cache;
class Sequence;
struct LayerShape;
struct Storage;
struct Page;

/// Tokens that a layer waits for in FP16, more until there are different ones among them, and then at most.
inline constexpr int32_t kCalibrationTokens = 128;
inline constexpr int32_t kMostCalibrationTokens = 2048;

/// Whether scales may have been found by so many tokens.
constexpr bool are_calibration_tokens(int32_t tokens) {
  return tokens >= kCalibrationTokens && tokens <= kMostCalibrationTokens &&
         std::has_single_bit(static_cast<uint32_t>(tokens / kCalibrationTokens)) && tokens % kCalibrationTokens == 0;
}

/// Scales of one layer. Forks share them.
class FoundScales {
 public:
  /// `numbers`: as LayerScales::numbers; `tokens`: first ones by which they were found.
  FoundScales(Cache& cache, const LayerShape& layer, Vector<float> numbers, int32_t tokens);

  LayerScales view() const { return {reinterpret_cast<const float*>(memory_.data())}; }
  std::span<const float> numbers() const { return numbers_; }
  int32_t tokens() const { return tokens_; }
  /// With the count of those that share it.
  static uint64_t bytes_of(const LayerShape& layer);
  uint64_t bytes() const { return bytes_; }

 private:
  Vector<float> numbers_;
  BackendMemory memory_;
  int32_t tokens_;
  uint64_t bytes_;
};

/// Squares of the queries of a layer's first tokens, for every number of tokens that may be waited for.
class QueryEnergies {
 public:
  explicit QueryEnergies(Allocator& allocator) : sums_(allocator) {}

  /// Count the queries of one sequence of the batch, by ascending positions, that have not been counted.
  void add(const AttendBatch& batch, const AttendSequence& sequence, Pages& pages, Allocator& scratch);
  /// [kv_heads][whole_key()] sums over the first `tokens` tokens; empty without queries.
  Vector<double> sums(int32_t tokens, Allocator& allocator) const;
  uint64_t bytes() const { return sums_.capacity() * sizeof(double); }
  static uint64_t bytes_of(const LayerShape& layer);
  void truncate(int32_t length) noexcept;
  /// Queries from this position on will be counted, again if they have been.
  void count_again(int32_t position) noexcept { next_ = std::min(next_, position); }
  void drop() noexcept;

 private:
  static constexpr size_t kParts = 5;
  static size_t part_of(int32_t position);

  Vector<double> sums_;  // [kParts][kv_heads * whole_key()]
  int32_t next_ = 0;     // position after the last query that was counted
};

/// What a sequence knows of the scales of its layers.
class Calibration {
 public:
  struct Decision {
    std::shared_ptr<const FoundScales> scales;  // null: none yet, or none at all
    bool given_up = false;                      // tokens are too alike, or pages have been sealed without
    bool backlog = false;                       // pages in FP16 that are to be sealed now
    int32_t alike = 0;                          // first tokens that have been found too alike
  };
  struct Layer : Decision {
    explicit Layer(Allocator& allocator) : queries(allocator) {}

    Decision& decision() { return *this; }

    QueryEnergies queries;
    std::optional<QueryEnergies> before_step;
  };

  explicit Calibration(Cache& cache);
  /// Of a fork.
  Calibration(Cache& cache, const Calibration& parent);

  Layer& layer(int32_t index) { return layers_[static_cast<size_t>(index)]; }
  const Layer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  /// The first `length` tokens of every layer stay. `found_anew`: without tokens, there are new scales to be found.
  void truncate(int32_t length, bool found_anew) noexcept;
  /// Copies of what has been counted, [n_layers], for begin_step().
  Vector<QueryEnergies> counted(Allocator& allocator) const;
  void begin_step(Vector<QueryEnergies>& counted) noexcept;
  /// After the layers have been rolled back. Without kept tokens, what has been counted is as before; what the queries
  /// of dropped tokens beside kept ones added stays.
  void end_step(const Sequence& sequence, bool keeps_any) noexcept;
  uint64_t bytes() const;
  /// The same of a sequence of so many tokens.
  static uint64_t table_bytes(const Cache& cache);
  static uint64_t bytes_of(const Cache& cache, const Storage& storage, int32_t tokens, int32_t queries);

  /// Held while queries are counted: several threads may attend.
  mutable std::mutex mutex;

 private:
  Vector<Layer> layers_;
};

/// Whether sequences of this storage find scales of their own: those of the cache go before.
bool finds_own_scales(const Cache& cache, const Storage& storage);

/// Null if they do not.
Owned<Calibration> make_calibration(Cache& cache, const Storage& storage);

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
  /// Null if the layer has too few tokens, or does not wait.
  static std::optional<Calibrator> prepare(Sequence& sequence, int32_t layer);
  /// The step to pages without scales, of any number of tokens.
  static Calibrator give_up(Sequence& sequence, int32_t layer);
  Calibrator(Calibrator&& other) noexcept;
  Calibrator& operator=(Calibrator&&) = delete;
  ~Calibrator();

  /// What a search by the first tokens of a layer takes while lists hold so many pages, found scales included.
  static uint64_t bytes_of(const LayerShape& layer, int64_t pages_of_list);

  void commit() noexcept { exchange(); }
  void undo() noexcept { exchange(); }
  /// When it will not be undone; a layer that waits on keeps them.
  void forget_queries() noexcept;

 private:
  Calibrator(Sequence& sequence, int32_t layer);
  void exchange() noexcept;
  void scale_pages();

  Sequence* sequence_;
  int32_t layer_;
  Calibration::Decision other_;
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
  /// As add(), but a layer that would wait on gives up: its pages will be sealed whatever tokens come.
  void end_waiting(Sequence& sequence, int32_t layer);
  void keep() noexcept;

 private:
  Vector<Calibrator> made_;
};

/// First tokens by which a layer that waits would find its scales now; 0: it waits on, −1: it goes without from now on.
int32_t calibration_tokens(const Sequence& sequence, int32_t layer);

/// Layers that have waited long enough find their scales, and their pages are sealed, as by the next append.
void find_own_scales(Sequence& sequence, Allocator& scratch);

/// Layers whose pages have been sealed without scales, as recoding does, wait for none.
void end_waiting_with_sealed_pages(Sequence& sequence) noexcept;

/// Throws KVQ_E_STATE if a layer still waits for scales.
void require_calibrated(const Sequence& sequence, int32_t layer, const char* what);

}  // namespace kvq
