#include "backend/cpu/attend/attend.h"

#include "backend/cpu/attend/attend_item.h"
#include "backend/cpu/attend/attend_sizes.h"
#include "core/error.h"
#include "core/head_rotation.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace kvq::cpu {
namespace {

constexpr float kLog2E = 1.44269504F;
constexpr double kLn2 = 0.69314718055994530942;

/// Sinks are checked before anything is written.
void check_sinks(const AttendBatch& batch) {
  for (int32_t head = 0; batch.sinks != nullptr && head < batch.q_heads; ++head) {
    const float sink = batch.sinks[head];
    if (sink < std::numeric_limits<float>::infinity()) continue;  // false for NaN
    fail(KVQ_E_ARGUMENT, "batch->sinks[%d] is %g, must be finite, or -inf for none", head, static_cast<double>(sink));
  }
}

/// Add a sink to a sum of exponentials in base 2.
void add_sink(SoftmaxState& state, float sink) {
  if (sink == kMinusInfinity) return;
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float logit = std::clamp(sink * kLog2E, -kLargest, kLargest);
  const float maximum = std::max(state.maximum, logit);
  state.sum = state.sum * std::exp2(state.maximum - maximum) + std::exp2(logit - maximum);
  state.maximum = maximum;
}

/// One attend call: prepare queries, run items, merge their partials.
class AttendCall {
 public:
  AttendCall(const AttendBatch& batch, const KernelTable& kernels, AttendWorkspace& workspace)
      : batch_(batch),
        kernels_(kernels),
        workspace_(workspace),
        sizes_(batch, kernels),
        codec_(sizes_.codec()),
        layout_(sizes_.layout()),
        room_(batch, batch.query_positions.size()),
        group_(sizes_.group()) {}

  /// Makes every allocation of the call. `largest`: extra floats for weigh().
  void plan(int32_t n_threads, size_t largest) {
    for (const AttendSequence& sequence : batch_.sequences) {
      for (int32_t head = 0; head < batch_.kv_heads; ++head) {
        sizes_.add(1, sequence.query_count, sequence.page_counts[head]);
      }
    }
    AttendSizes sizes = sizes_.sum(batch_.query_positions.size(), n_threads);
    sizes.largest = largest;
    workspace_.make_room(sizes);
    size_t partials = 0;
    for (size_t s = 0; s < batch_.sequences.size(); ++s) {
      for (int32_t head = 0; head < batch_.kv_heads; ++head) partials = plan_head(s, head, partials);
    }
    order_items();
  }

  void run(Parallel& parallel) {
    prepare_queries(parallel);
    const bool split = workspace_.items.size() != workspace_.merges.size();
    parallel.run(static_cast<int32_t>(workspace_.items.size()), [this, split](int32_t i) noexcept {
      const auto item = static_cast<size_t>(workspace_.order[static_cast<size_t>(i)]);
      run(item);
      if (!split) merge({item, 1});
    });
    if (!split) return;
    parallel.run(static_cast<int32_t>(workspace_.merges.size()),
                 [this](int32_t i) noexcept { merge(workspace_.merges[static_cast<size_t>(i)]); });
  }

  /// Softmax weights instead of values, for a batch of one sequence: maxima and sums first, then weights.
  void weigh(Parallel& parallel, Pooling group, std::span<float* const> masses) {
    prepare_queries(parallel);
    const auto items = static_cast<int32_t>(workspace_.items.size());
    parallel.run(items, [this](int32_t i) noexcept {
      const AttendItem& item = workspace_.items[static_cast<size_t>(i)];
      const ScratchPool::Piece work(workspace_.scratch);
      measure_item(batch_, item, queries_of(item), kernels_, workspace_.partials.data() + item.partial, work.data());
    });
    for (const AttendMerge& each : workspace_.merges) share_states(each);
    parallel.run(batch_.kv_heads, [this, group, masses](int32_t head) noexcept {
      const ScratchPool::Piece work(workspace_.scratch);
      const SlotWeights weights{group, masses[static_cast<size_t>(head)], largest(head)};
      for (const AttendItem& item : workspace_.items) {
        if (item.head != head) continue;
        weigh_item(batch_, item, queries_of(item), kernels_, workspace_.partials.data() + item.partial, work.data(),
                   weights);
      }
    });
  }

 private:
  /// Largest weights of weigh(), zeroed between heads; null if unused.
  float* largest(int32_t head) const {
    if (workspace_.largest.empty()) return nullptr;
    const int32_t* counts = batch_.sequences.front().page_counts;
    return workspace_.largest.data() + static_cast<ptrdiff_t>(std::accumulate(counts, counts + head, 0)) * kPageSlots;
  }

  /// Gives all items of the same rows the maxima and sums of whole rows.
  void share_states(const AttendMerge& merge) noexcept {
    const AttendItem* items = workspace_.items.data() + merge.first_item;
    for (int32_t row = 0; row < items[0].row_count; ++row) {
      SoftmaxState whole{kMinusInfinity, 0.0F};
      for (int32_t i = 0; i < merge.items; ++i) whole.maximum = std::max(whole.maximum, state(items[i], row).maximum);
      for (int32_t i = 0; i < merge.items; ++i) {
        const SoftmaxState each = state(items[i], row);
        if (each.sum != 0.0F) whole.sum += each.sum * std::exp2(each.maximum - whole.maximum);
      }
      whole = with_sink(whole, items[0], row);
      for (int32_t i = 0; i < merge.items; ++i) {
        layout_.states(workspace_.partials.data() + items[i].partial)[row] = whole;
      }
    }
  }

  /// Query token and head of an item's row.
  struct QueryHead {
    size_t query;
    size_t head;
  };
  QueryHead query_head(const AttendItem& item, int32_t row) const {
    const int32_t of_head = item.row_begin + row;
    const int32_t query_begin = batch_.sequences[static_cast<size_t>(item.sequence)].query_begin;
    return {static_cast<size_t>(query_begin + of_head / group_),
            static_cast<size_t>(item.head * group_ + of_head % group_)};
  }

  SoftmaxState with_sink(SoftmaxState state, const AttendItem& item, int32_t row) const noexcept {
    if (batch_.sinks != nullptr) add_sink(state, batch_.sinks[query_head(item, row).head]);
    return state;
  }

  void prepare_queries(Parallel& parallel) {
    batch_.rope->fill_table(batch_.query_positions, workspace_.rope_table.data());
    const auto sequences = static_cast<int32_t>(batch_.sequences.size());
    parallel.run(sequences * batch_.kv_heads, [this](int32_t i) noexcept {
      prepare_queries(batch_.sequences[static_cast<size_t>(i / batch_.kv_heads)], i % batch_.kv_heads);
    });
  }

  size_t plan_head(size_t s, int32_t head, size_t partials) {
    const AttendSequence& sequence = batch_.sequences[s];
    const int32_t pages = sequence.page_counts[head];
    const HeadCut cut = sizes_.cut(sequence.query_count, pages);
    for (int32_t row = 0; row < cut.rows; row += cut.item_rows) {
      const int32_t count = std::min(cut.item_rows, cut.rows - row);
      AttendMerge merge{workspace_.items.size(), 0};
      int32_t page = 0;
      do {
        const int32_t length = std::min(cut.item_pages, pages - page);
        workspace_.items.push_back({.sequence = static_cast<int32_t>(s),
                                    .head = head,
                                    .row_begin = row,
                                    .row_count = count,
                                    .page_begin = page,
                                    .page_count = length,
                                    .path = cut.path,
                                    .partial = partials});
        partials += layout_.item_floats(count);
        ++merge.items;
        page += length;
      } while (page < pages);
      workspace_.merges.push_back(merge);
    }
    return partials;
  }

  /// If pages hold data of other heads, items of all heads over the same pages run one after another: the next item
  /// finds the data in the cache.
  void order_items() {
    Vector<int32_t>& order = workspace_.order;
    order.resize(workspace_.items.size());
    std::iota(order.begin(), order.end(), 0);
    if (codec_ == nullptr || !codec_->reads_other_heads(*batch_.context)) return;
    std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
      const AttendItem& x = workspace_.items[static_cast<size_t>(a)];
      const AttendItem& y = workspace_.items[static_cast<size_t>(b)];
      return std::tie(x.sequence, x.page_begin, a) < std::tie(y.sequence, y.page_begin, b);
    });
  }

  /// First row of a KV head's queries in the work space.
  size_t first_query(const AttendSequence& sequence, int32_t head) const {
    return static_cast<size_t>(sequence.query_begin) * static_cast<size_t>(batch_.q_heads) +
           static_cast<size_t>(head) * static_cast<size_t>(sequence.query_count) * static_cast<size_t>(group_);
  }

  void prepare_queries(const AttendSequence& sequence, int32_t head) noexcept {
    const float* of_keys = sequence.scales.find(ScaleArray::kQueries, head, batch_.head);
    const float* of_values = sequence.scales.find(ScaleArray::kOutputs, head, batch_.head);
    const float* offsets = sequence.scales.find(ScaleArray::kOffsets, head, batch_.head);
    size_t row = first_query(sequence, head);
    for (int32_t token = 0; token < sequence.query_count; ++token) {
      const auto query = static_cast<size_t>(sequence.query_begin + token);
      const float* angles = workspace_.rope_table.data() + query * batch_.rope->table_stride();
      for (int32_t g = 0; g < group_; ++g, ++row) {
        const size_t source = batch_.q_strides.at(query, static_cast<size_t>(head * group_ + g));
        float* q = read_row(room_.keys, row, source);
        batch_.rope->rotate(angles, q);
        scale_row(room_.keys, row, of_keys);
        if (!batch_.head.is_latent) continue;
        q = read_row(room_.latent, row, source);
        workspace_.biases[row] = offsets != nullptr ? product(q, offsets, room_.latent.dim) : 0.0F;
        scale_row(room_.latent, row, of_values);
      }
    }
  }

  float* plain_row(const QueryPart& part, size_t row) const {
    return workspace_.queries.data() + part.plain + row * static_cast<size_t>(part.dim);
  }

  float* read_row(const QueryPart& part, size_t row, size_t source) const noexcept {
    float* q = plain_row(part, row);
    read_floats(batch_.q, batch_.q_dtype, source + static_cast<size_t>(part.channel), part.dim, q);
    return q;
  }

  /// Of a query and the offsets of its latent, as a logit.
  float product(const float* q, const float* offsets, int32_t dim) const noexcept {
    return batch_.scale * kLog2E * std::inner_product(q, q + dim, offsets, 0.0F);
  }

  /// Scales a row of queries, and rotates and rounds it as pages need.
  void scale_row(const QueryPart& part, size_t row, const float* unscale) const noexcept {
    const int32_t dim = part.dim;
    const float factor = batch_.scale * kLog2E;
    float* q = plain_row(part, row);
    for (int32_t i = 0; i < dim; ++i) q[i] *= factor;
    for (int32_t i = 0; unscale != nullptr && i < dim; ++i) q[i] *= unscale[i];
    if (!part.is_rotated) return;
    float* rotated = workspace_.rotated_queries.data() + part.rotated + row * static_cast<size_t>(dim);
    std::copy_n(q, dim, rotated);
    rotate_head(rotated, dim);
    if (!part.is_rounded) return;
    round_query(rotated, dim, workspace_.rounded_queries.data() + part.rounded + row * rounded_stride(dim));
  }

  ItemRows rows_of(const QueryPart& part, size_t row) const {
    const size_t first = row * static_cast<size_t>(part.dim);
    return {.plain = workspace_.queries.data() + part.plain + first,
            .rotated = part.is_rotated ? workspace_.rotated_queries.data() + part.rotated + first : nullptr,
            .rounded = part.is_rounded
                           ? workspace_.rounded_queries.data() + part.rounded + row * rounded_stride(part.dim)
                           : nullptr,
            .dim = part.dim};
  }

  ItemQueries queries_of(const AttendItem& item) const {
    const AttendSequence& sequence = batch_.sequences[static_cast<size_t>(item.sequence)];
    const size_t row = first_query(sequence, item.head) + static_cast<size_t>(item.row_begin);
    return {.keys = rows_of(room_.keys, row),
            .latent = rows_of(room_.latent, row),
            .biases = batch_.head.is_latent ? workspace_.biases.data() + row : nullptr,
            .positions = batch_.query_positions.data() + sequence.query_begin,
            .first_row = item.row_begin,
            .group = group_};
  }

  void run(size_t index) noexcept {
    const AttendItem& item = workspace_.items[index];
    const ScratchPool::Piece work(workspace_.scratch);
    run_item(batch_, item, queries_of(item), kernels_, workspace_.partials.data() + item.partial, work.data());
  }

  void merge(const AttendMerge& merge) noexcept {
    const AttendItem& first = workspace_.items[merge.first_item];
    for (int32_t row = 0; row < first.row_count; row += kBlockRows) {
      merge_block(merge, row, std::min(kBlockRows, first.row_count - row));
    }
  }

  /// Merges rows whose sums are decoded together.
  void merge_block(const AttendMerge& merge, int32_t row, int32_t rows) noexcept {
    const AttendItem& first = workspace_.items[merge.first_item];
    alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows * kMaxHeadDim)> outputs{};
    std::array<SoftmaxState, kBlockRows> states{};
    for (int32_t i = 0; i < rows; ++i) {
      states[static_cast<size_t>(i)] =
          merge_row(merge, row + i, outputs.data() + static_cast<ptrdiff_t>(i) * kMaxHeadDim);
    }
    if (layout_.sums > 0) {
      codec_->add_sums(*batch_.context, kernels_, first.head, rows, sums_of(first, row), outputs.data());
    }
    for (int32_t i = 0; i < rows; ++i) {
      // A query that sees no token gives zeros.
      const SoftmaxState& state = states[static_cast<size_t>(i)];
      const SoftmaxState whole = with_sink(state, first, row + i);
      const float normaliser = whole.sum > 0.0F ? std::exp2(state.maximum - whole.maximum) / whole.sum : 0.0F;
      float* output = outputs.data() + static_cast<ptrdiff_t>(i) * kMaxHeadDim;
      for (int32_t channel = 0; channel < batch_.head.values; ++channel) output[channel] *= normaliser;
      unscale(first, normaliser * state.sum, output);
      write_row(first, row + i, whole, output);
    }
  }

  /// `of_tokens`: share of attention that tokens get, the rest goes to a sink.
  void unscale(const AttendItem& item, float of_tokens, float* output) const noexcept {
    const LayerScales& scales = batch_.sequences[static_cast<size_t>(item.sequence)].scales;
    if (!scales) return;
    const float* factors = scales.of(ScaleArray::kOutputs, item.head, batch_.head);
    const float* offsets = scales.of(ScaleArray::kOffsets, item.head, batch_.head);
    for (int32_t i = 0; i < batch_.head.values; ++i) output[i] = output[i] * factors[i] + of_tokens * offsets[i];
  }

  /// m = max mᵢ; l = Σ lᵢ 2^{mᵢ−m}; o = Σ oᵢ 2^{mᵢ−m}, not yet divided by l.
  SoftmaxState merge_row(const AttendMerge& merge, int32_t row, float* output) noexcept {
    const AttendItem* items = workspace_.items.data() + merge.first_item;
    const auto width = static_cast<int32_t>(layout_.width);
    SoftmaxState whole{kMinusInfinity, 0.0F};
    for (int32_t i = 0; i < merge.items; ++i) whole.maximum = std::max(whole.maximum, state(items[i], row).maximum);
    alignas(kDataAlignment) std::array<float, kMaxHeadDim> rotated{};
    for (int32_t i = 0; i < merge.items; ++i) {
      const SoftmaxState each = state(items[i], row);
      if (each.sum == 0.0F) continue;
      const float weight = std::exp2(each.maximum - whole.maximum);
      whole.sum += each.sum * weight;
      float* partial = workspace_.partials.data() + items[i].partial;
      const int32_t rows = items[i].row_count;
      kernels_.blend(output, 1.0F, layout_.plain_output(partial, rows) + row * width, weight, width);
      if (layout_.sums > 0) add_sums(items[0], items[i], row, weight);
      if (!layout_.rotated) continue;
      kernels_.blend(rotated.data(), 1.0F, layout_.rotated_output(partial, rows) + row * width, weight, width);
    }
    if (layout_.rotated) {
      rotate_head(rotated.data(), batch_.head.values);
      kernels_.blend(output, 1.0F, rotated.data(), 1.0F, width);
    }
    return whole;
  }

  float* sums_of(const AttendItem& item, int32_t row) const {
    return layout_.sums_of(workspace_.partials.data() + item.partial, item.row_count) +
           static_cast<size_t>(row) * layout_.sums;
  }

  /// Accumulates the sums of all items in the first one.
  void add_sums(const AttendItem& first, const AttendItem& item, int32_t row, float weight) const noexcept {
    float* to = sums_of(first, row);
    const float* from = sums_of(item, row);
    kernels_.blend(to, from == to ? 0.0F : 1.0F, from, weight, static_cast<int32_t>(layout_.sums));
  }

  void write_row(const AttendItem& item, int32_t row, const SoftmaxState& state, const float* output) noexcept {
    const auto [query, head] = query_head(item, row);
    write_floats(output, batch_.head.values, batch_.out, batch_.out_dtype, batch_.out_strides.at(query, head));
    if (batch_.lse == nullptr) return;
    const double log2_sum = state.sum > 0.0F ? double{state.maximum} + std::log2(double{state.sum})
                                             : -std::numeric_limits<double>::infinity();
    batch_.lse[query * static_cast<size_t>(batch_.q_heads) + head] = static_cast<float>(kLn2 * log2_sum);
  }

  const SoftmaxState& state(const AttendItem& item, int32_t row) const {
    return layout_.states(workspace_.partials.data() + item.partial)[row];
  }

  const AttendBatch& batch_;
  const KernelTable& kernels_;
  AttendWorkspace& workspace_;
  CallSizes sizes_;
  const ContextCodec* codec_;
  const PartialLayout& layout_;
  const QueryRoom room_;
  int32_t group_;
};

/// Slots of all heads in a batch of one sequence.
size_t slots_of(const AttendBatch& batch) {
  const int32_t* counts = batch.sequences.front().page_counts;
  return std::accumulate(counts, counts + batch.kv_heads, size_t{0}) * kPageSlots;
}

}  // namespace

void attend(const AttendBatch& batch, const KernelTable& kernels, Parallel& parallel, AttendWorkspace& workspace) {
  check_sinks(batch);
  AttendCall call(batch, kernels, workspace);
  call.plan(parallel.n_threads(), 0);
  call.run(parallel);
}

void weigh(const AttendBatch& batch, Pooling group, const KernelTable& kernels, Parallel& parallel,
           AttendWorkspace& workspace, std::span<float* const> masses) {
  AttendCall call(batch, kernels, workspace);
  call.plan(parallel.n_threads(), group == Pooling::kMax ? slots_of(batch) : 0);
  call.weigh(parallel, group, masses);
}

}  // namespace kvq::cpu
