#include "backend/cpu/append.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"
#include "formats/hadamard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace kvq::cpu {
namespace {

/// Tokens whose rotation angles are held at once.
constexpr int32_t kSliceTokens = 1024;

/// One side of the tokens to append, and what is done to it before it is stored.
struct CheckedSide {
  const void* tensor;
  const char* name;
  const Rope* rope;  // null: not rotated
  bool hadamard;
};

bool fits_float16(std::span<const float> head) {
  return std::all_of(head.begin(), head.end(), [](float value) { return std::fabs(value) <= kMaxFloat16; });
}

/// Rotations keep the norm, so a head whose norm fits needs no closer look. False for NaN.
bool norm_fits_float16(std::span<const float> head) {
  float squares = 0.0F;
  for (const float value : head) squares += value * value;
  return squares <= kMaxFloat16 * kMaxFloat16;
}

void check_head(const TokenBatch& tokens, const CheckedSide& side, size_t index) {
  const auto dim = static_cast<size_t>(tokens.head_dim);
  std::array<float, kMaxHeadDim> storage;
  const std::span<float> head(storage.data(), dim);
  read_floats(side.tensor, tokens.dtype, index * dim, tokens.head_dim, head.data());
  if (norm_fits_float16(head)) return;
  const size_t token = index / static_cast<size_t>(tokens.kv_heads);
  bool fits = fits_float16(head);
  if (fits && side.rope != nullptr) {
    std::array<float, kMaxHeadDim> table;
    side.rope->fill_table(tokens.positions.subspan(token, 1), table.data());
    side.rope->rotate(table.data(), head.data());
    fits = fits_float16(head);
  }
  if (fits && side.hadamard) {
    hadamard(head.data(), tokens.head_dim);
    fits = fits_float16(head);
  }
  if (fits) return;
  size_t channel = 0;
  while (std::fabs(head[channel]) <= kMaxFloat16) ++channel;
  fail(KVQ_E_ARGUMENT,
       "%s of token %zu, head %zu, channel %zu is %g when it is stored, but pages hold finite numbers up to %g",
       side.name, token, index % static_cast<size_t>(tokens.kv_heads), channel, static_cast<double>(head[channel]),
       static_cast<double>(kMaxFloat16));
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
  const CheckedSide sides[] = {{tokens.k, "k", tokens.rope, tokens.hadamard_keys},
                               {tokens.v, "v", nullptr, tokens.hadamard_values}};
  const size_t heads = static_cast<size_t>(tokens.n) * static_cast<size_t>(tokens.kv_heads);
  for (const CheckedSide& side : sides) {
    for (size_t i = 0; i < heads; ++i) check_head(tokens, side, i);
  }
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
