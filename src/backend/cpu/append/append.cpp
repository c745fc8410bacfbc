#include "backend/cpu/append/append.h"

#include "backend/cpu/append/angle_table.h"
#include "backend/cpu/append/range_check.h"
#include "backend/cpu/commvq/append.h"
#include "backend/cpu/dispatch/kernels.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::cpu {
namespace {

/// Tokens whose rotation angles are held at once.
constexpr int32_t kSliceTokens = 1024;
// What one thread does, roughly: enough to tell whether a loop is worth sharing.
constexpr double kScalarsStoredPerMicrosecond = 1500.0;
constexpr double kScalarsSealedPerMicrosecond = 3500.0;

/// One call of append: pages of several heads, on any number of threads.
class AppendCall {
 public:
  AppendCall(const TokenBatch& tokens, std::span<const PageWrite> writes, const AppendKernels& kernels,
             Allocator& scratch)
      : tokens_(tokens),
        kernels_(kernels),
        plain_(SideFormat{}, SideFormat{}, tokens.head_dim),
        check_(tokens),
        coded_(tokens, scratch),
        order_(writes.size(), nullptr, StlAllocator<const PageWrite*>(scratch)) {
    // By tokens rather than by heads: the heads of a token are neighbours in memory.
    std::transform(writes.begin(), writes.end(), order_.begin(), [](const PageWrite& write) { return &write; });
    std::sort(order_.begin(), order_.end(), [](const PageWrite* a, const PageWrite* b) {
      return a->token_begin != b->token_begin ? a->token_begin < b->token_begin : a < b;
    });
  }

  void run(Parallel& parallel, Allocator& scratch) {
    AngleTable angles(*tokens_.rope, kernels_.turn, tokens_.n, std::min(tokens_.n, kSliceTokens + kPageSlots), parallel,
                      scratch);
    auto first = order_.begin();
    for (int32_t begin = 0; first != order_.end(); begin += kSliceTokens) {
      // The last page of a slice may reach beyond it.
      const int32_t covered = std::min(tokens_.n - begin, kSliceTokens + kPageSlots);
      angles.fill(tokens_.positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(covered)));
      const auto last = std::partition_point(
          first, order_.end(), [begin](const PageWrite* write) { return write->token_begin < begin + kSliceTokens; });
      const std::span<const PageWrite* const> slice(first, last);
      coded_.begin(slice);
      parallel.run(static_cast<int32_t>(slice.size()), microseconds(slice), [&](int32_t i) noexcept {
        const auto at = static_cast<size_t>(i);
        const PageWrite& next = *slice[std::min(at + 1, slice.size() - 1)];
        write_page(*slice[at], next, angles.row(slice[at]->token_begin - begin), coded_.staging(at));
      });
      if (!check_.failed()) coded_.encode(parallel);
      first = last;
    }
    if (!check_.failed()) return;
    for (const PageWrite* write : order_) clear_new_slots(*write);
    check_.report();
  }

 private:
  double microseconds(std::span<const PageWrite* const> writes) const {
    double sum = 0.0;
    for (const PageWrite* write : writes) {
      sum += 2.0 * tokens_.head_dim * write->token_count / kScalarsStoredPerMicrosecond;
      if (!write->format->is_float16()) sum += 2.0 * tokens_.head_dim * kPageSlots / kScalarsSealedPerMicrosecond;
    }
    return sum;
  }

  /// `next`: what this thread probably writes next; `angles`: of the write's first token; `kept`: where the page is to
  /// be left in FP16, for codes, or null.
  void write_page(const PageWrite& write, const PageWrite& next, const float* angles, std::byte* kept) noexcept {
    if (write.format->is_float16()) {
      fill_page(write, next, angles, write.target);
      return;
    }
    alignas(kDataAlignment) std::array<std::byte, size_t{4} * kPageSlots * kMaxHeadDim> staging;
    const std::byte* page = write.source;
    if (write.token_count > 0) {
      std::byte* filled = kept != nullptr ? kept : staging.data();
      fill_page(write, next, angles, filled);
      page = filled;
    }
    if (check_.failed()) return;
    const PageFormat& format = *write.format;
    seal_side(Side::kKeys, format, page, {write.target, format.key_bytes()});
    seal_side(Side::kValues, format, page + plain_.key_bytes(),
              {write.target + format.key_bytes(), format.value_bytes()});
  }

  /// Slots that are kept and tokens that arrive, in an FP16 page.
  void fill_page(const PageWrite& write, const PageWrite& next, const float* angles, std::byte* page) noexcept {
    const bool covered = write.token_count == kPageSlots && padded_dim(tokens_.head_dim) == tokens_.head_dim;
    if (write.kept == 0) {
      if (!covered) std::memset(page, 0, plain_.bytes());
    } else if (write.source != page) {
      std::memcpy(page, write.source, plain_.bytes());
    }
    if (write.token_count == 0) return;  // there may be no tensors
    auto* keys = reinterpret_cast<uint16_t*>(page);
    auto* values = reinterpret_cast<uint16_t*>(page + plain_.key_bytes());
    const HeadRows key_rows = rows(write, tokens_.k, write, tokens_.v);
    const HeadRows value_rows = rows(write, tokens_.v, next, tokens_.k);
    if (!kernels_.store_keys(key_rows, *tokens_.rope, angles, write.kept, keys)) check_.inspect(Side::kKeys, write);
    if (!kernels_.store_values(value_rows, write.kept, values)) check_.inspect(Side::kValues, write);
  }

  /// Rows of one side of a page, and where the next ones are.
  HeadRows rows(const PageWrite& write, const void* tensor, const PageWrite& next, const void* next_tensor) const {
    return {first_row(tensor, write),
            first_row(next_tensor, next),
            row_bytes() * static_cast<size_t>(tokens_.kv_heads),
            tokens_.dtype,
            write.token_count,
            tokens_.head_dim};
  }

  const std::byte* first_row(const void* tensor, const PageWrite& write) const {
    const size_t row = static_cast<size_t>(write.token_begin) * static_cast<size_t>(tokens_.kv_heads) +
                       static_cast<size_t>(write.head);
    return static_cast<const std::byte*>(tensor) + row * row_bytes();
  }
  size_t row_bytes() const { return static_cast<size_t>(tokens_.head_dim) * dtype_bytes(tokens_.dtype); }

  /// `out`: the side's part of the page, of which the codec may need less. Sides with codes are left for later.
  void seal_side(Side side, const PageFormat& format, const std::byte* float16, std::span<std::byte> out) noexcept {
    const size_t bytes = side_bytes(side, format);
    switch (format.side(side).codec) {
      case Codec::kFloat16:
        std::memcpy(out.data(), float16, bytes);
        break;
      case Codec::kInteger:
        kernels_.encode(side, format.side(side), tokens_.head_dim, float16, out.data());
        break;
      case Codec::kCommvq:
        return;
    }
    std::memset(out.data() + bytes, 0, out.size() - bytes);
  }

  /// Take back what was written to a page that is in use already: attention reads it, if with weight 0.
  void clear_new_slots(const PageWrite& write) noexcept {
    if (write.source != write.target) return;
    const int32_t end = write.kept + write.token_count;
    float16::clear_slots(Side::kKeys, tokens_.head_dim, write.kept, end, write.target);
    float16::clear_slots(Side::kValues, tokens_.head_dim, write.kept, end, write.target + plain_.key_bytes());
  }

  const TokenBatch& tokens_;
  const AppendKernels& kernels_;
  const PageFormat plain_;
  RangeCheck check_;
  CodedPages coded_;
  Vector<const PageWrite*> order_;
};

}  // namespace

void append(const TokenBatch& tokens, std::span<const PageWrite> writes, const AppendKernels& kernels,
            Parallel& parallel, Allocator& scratch) {
  AppendCall(tokens, writes, kernels, scratch).run(parallel, scratch);
}

}  // namespace kvq::cpu
