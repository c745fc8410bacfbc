#include "backend/cpu/append.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace kvq::cpu {
namespace {

/// Tokens whose rotation angles are held at once.
constexpr int32_t kSliceTokens = 1024;

/// The largest magnitude that each channel can have once it is stored; a rotation turns a pair by any angle.
void bound_magnitudes(const Rope* rope, float* head, int32_t head_dim) {
  for (int32_t i = 0; i < head_dim; ++i) head[i] = std::fabs(head[i]);
  if (rope == nullptr) return;
  for (int32_t pair = 0; pair < rope->pairs(); ++pair) {
    float& x = head[rope->first_channel(pair)];
    float& y = head[rope->second_channel(pair)];
    x = y = std::sqrt(x * x + y * y);
  }
}

void check_tensor(const TokenBatch& tokens, const void* tensor, const char* name, const Rope* rope) {
  const auto dim = static_cast<size_t>(tokens.head_dim);
  const size_t heads = static_cast<size_t>(tokens.n) * static_cast<size_t>(tokens.kv_heads);
  std::array<float, kMaxHeadDim> head;
  for (size_t i = 0; i < heads; ++i) {
    read_floats(tensor, tokens.dtype, i * dim, tokens.head_dim, head.data());
    bound_magnitudes(rope, head.data(), tokens.head_dim);
    const auto* bad = std::find_if_not(head.data(), head.data() + dim, [](float bound) { return bound <= kMaxFloat16; });
    if (bad == head.data() + dim) continue;
    const auto channel = static_cast<int32_t>(bad - head.data());
    read_floats(tensor, tokens.dtype, i * dim, tokens.head_dim, head.data());
    fail(KVQ_E_ARGUMENT, "%s of token %zu, head %zu, channel %d is %g: FP16 pages hold finite numbers up to %g%s", name,
         i / static_cast<size_t>(tokens.kv_heads), i % static_cast<size_t>(tokens.kv_heads), channel,
         static_cast<double>(head[static_cast<size_t>(channel)]), static_cast<double>(kMaxFloat16),
         rope != nullptr ? ", rotated pairs included" : "");
  }
}

/// A page being written, in FP16.
class PageWriter {
 public:
  PageWriter(const TokenBatch& tokens, const PageWrite& write, const float* rope_table, std::byte* float16)
      : tokens_(tokens),
        write_(write),
        rope_table_(rope_table),
        keys_(reinterpret_cast<uint16_t*>(float16)),
        values_(reinterpret_cast<uint16_t*>(float16 +
                                            PageFormat{SideFormat{}, SideFormat{}, tokens.head_dim}.key_bytes())) {}

  /// `rope_table` begins at the write's first token.
  void write_tokens() {
    const auto dim = static_cast<size_t>(tokens_.head_dim);
    std::array<float, kMaxHeadDim> head;
    for (int32_t i = 0; i < write_.token_count; ++i) {
      const auto token = static_cast<size_t>(write_.token_begin + i);
      const size_t offset = (token * static_cast<size_t>(tokens_.kv_heads) + static_cast<size_t>(write_.head)) * dim;
      read_floats(tokens_.k, tokens_.dtype, offset, tokens_.head_dim, head.data());
      tokens_.rope->rotate(rope_table_ + static_cast<size_t>(i) * tokens_.rope->table_stride(), head.data());
      store(Side::kKeys, keys_, write_.kept + i, head.data());
      read_floats(tokens_.v, tokens_.dtype, offset, tokens_.head_dim, head.data());
      store(Side::kValues, values_, write_.kept + i, head.data());
    }
  }

 private:
  void store(Side side, uint16_t* plane, int32_t slot, const float* head) const {
    for (int32_t channel = 0; channel < tokens_.head_dim; ++channel) {
      plane[float16::index(side, tokens_.head_dim, slot, channel)] = to_float16(head[channel]);
    }
  }

  const TokenBatch& tokens_;
  const PageWrite& write_;
  const float* rope_table_;
  uint16_t* keys_;
  uint16_t* values_;
};

/// Copy the first `slots` slots of an FP16 page; the rest of `target` is left as it is.
void copy_slots(const std::byte* source, int32_t slots, int32_t head_dim, std::byte* target) {
  const PageFormat format{SideFormat{}, SideFormat{}, head_dim};
  if (slots == kPageSlots) {
    std::memcpy(target, source, format.bytes());
    return;
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const size_t offset = side == Side::kKeys ? 0 : format.key_bytes();
    const auto* from = reinterpret_cast<const uint16_t*>(source + offset);
    auto* to = reinterpret_cast<uint16_t*>(target + offset);
    for (int32_t slot = 0; slot < slots; ++slot) {
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        const size_t i = float16::index(side, head_dim, slot, channel);
        to[i] = from[i];
      }
    }
  }
}

void write_page(const TokenBatch& tokens, const PageWrite& write, const float* rope_table) noexcept {
  const PageFormat plain{SideFormat{}, SideFormat{}, tokens.head_dim};
  alignas(kDataAlignment) std::array<std::byte, size_t{4} * kPageSlots * kMaxHeadDim> staging;
  const bool seals = !write.format->is_float16();
  std::byte* float16 = seals ? staging.data() : write.target;
  if (seals && write.kept < kPageSlots) std::memset(float16, 0, plain.bytes());
  if (write.kept > 0 && write.source != float16) copy_slots(write.source, write.kept, tokens.head_dim, float16);
  PageWriter(tokens, write, rope_table, float16).write_tokens();
  if (!seals) return;
  encode_side(Side::kKeys, write.format->keys, tokens.head_dim, float16, write.target);
  encode_side(Side::kValues, write.format->values, tokens.head_dim, float16 + plain.key_bytes(),
              write.target + write.format->key_bytes());
}

}  // namespace

void check(const TokenBatch& tokens) {
  check_tensor(tokens, tokens.k, "k", tokens.rope);
  check_tensor(tokens, tokens.v, "v", nullptr);
}

void append(const TokenBatch& tokens, std::span<const PageWrite> writes, Parallel& parallel, Allocator& scratch) {
  const size_t stride = tokens.rope->table_stride();
  const int32_t slice_tokens = std::min(tokens.n, kSliceTokens + kPageSlots);
  Vector<float> table(static_cast<size_t>(slice_tokens) * stride, StlAllocator<float>(scratch));
  int32_t begin = 0;
  do {
    const int32_t covered = std::min(tokens.n - begin, kSliceTokens + kPageSlots);
    tokens.rope->fill_table(tokens.positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(covered)),
                            table.data());
    parallel.run(static_cast<int32_t>(writes.size()), [&](int32_t i) noexcept {
      const PageWrite& write = writes[static_cast<size_t>(i)];
      const bool in_slice = write.token_begin >= begin && write.token_begin < begin + kSliceTokens;
      if (in_slice) write_page(tokens, write, table.data() + static_cast<size_t>(write.token_begin - begin) * stride);
    });
    begin += kSliceTokens;
  } while (begin < tokens.n);
}

}  // namespace kvq::cpu
