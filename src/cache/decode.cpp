#include "cache/sequence.h"

#include "core/error.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

/// Pages of one head on the host, with the pages of other heads that they need.
class PageReader {
 public:
  PageReader(const Sequence& sequence, int32_t layer, int32_t head, Allocator& scratch)
      : sequence_(sequence),
        layer_(layer),
        head_(head),
        bytes_(scratch),
        pages_(static_cast<size_t>(sequence.cache.layer(layer).kv_heads), nullptr, scratch),
        sides_(pages_) {}

  void read(size_t index) {
    page_ = sequence_.list(layer_, head_)[index];
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      positions_[static_cast<size_t>(slot)] = page_->position(std::min(slot, page_->count - 1));
    }
    const PageFormat& format = *page_->format();
    const bool all = format.spans_heads();
    std::fill(pages_.begin(), pages_.end(), nullptr);
    const size_t pages = all ? pages_.size() : 1;
    bytes_.resize(size(pages, format.bytes()));
    for (size_t i = 0; i < pages; ++i) {
      const auto head = all ? static_cast<int32_t>(i) : head_;
      std::byte* to = bytes_.data() + i * format.bytes();
      sequence_.cache.backend.pages().read(format, sequence_.list(layer_, head)[index]->data, to);
      pages_[static_cast<size_t>(head)] = to;
    }
  }

  void decode(int32_t begin, int32_t end, const DecodedSlots& out) {
    if (out.k != nullptr) decode_side(side(Side::kKeys), begin, end - begin, out.k);
    if (out.v != nullptr) decode_side(side(Side::kValues), begin, end - begin, out.v);
    for (int32_t slot = begin; out.positions != nullptr && slot < end; ++slot) {
      out.positions[slot - begin] = page_->position(slot);
    }
  }

 private:
  /// Valid until the next call.
  EncodedSide side(Side side) {
    const PageFormat& format = *page_->format();
    for (size_t head = 0; head < sides_.size(); ++head) {
      sides_[head] = pages_[head] != nullptr ? pages_[head] + format.offset(side) : nullptr;
    }
    return {.side = side,
            .format = format,
            .layer = layer_,
            .head = head_,
            .sides = sides_.data(),
            .rope = sequence_.cache.layer(layer_).rope,
            .positions = positions_.data()};
  }

  const Sequence& sequence_;
  const int32_t layer_;
  const int32_t head_;
  const Page* page_ = nullptr;
  Vector<std::byte> bytes_;
  Vector<const std::byte*> pages_;  // [kv_heads], null where not read
  Vector<const std::byte*> sides_;
  std::array<int32_t, kPageSlots> positions_{};
};

}  // namespace

void decode_page(const Sequence& sequence, int32_t layer, int32_t head, size_t index, int32_t begin, int32_t end,
                 const DecodedSlots& out, Allocator& scratch) {
  PageReader reader(sequence, layer, head, scratch);
  reader.read(index);
  reader.decode(begin, end, out);
}

namespace {

/// Undo the scales of decoded slots.
void unscale(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out) {
  const LayerScales scales{sequence.host_scales(selection.layer)};
  if (!scales) return;
  const HeadShape& head = sequence.cache.layer(selection.layer).head;
  const float* of_keys = scales.of(ScaleArray::kKeys, selection.head, head);
  const float* of_values = scales.of(ScaleArray::kValues, selection.head, head);
  const float* offsets = scales.of(ScaleArray::kOffsets, selection.head, head);
  const auto n = static_cast<size_t>(selection.n);
  const auto key_dim = static_cast<size_t>(head.keys);
  const auto value_dim = static_cast<size_t>(head.values);
  for (size_t i = 0; out.k != nullptr && i < n * key_dim; ++i) out.k[i] /= of_keys[i % key_dim];
  for (size_t i = 0; out.v != nullptr && i < n * value_dim; ++i) {
    out.v[i] = out.v[i] / of_values[i % value_dim] + offsets[i % value_dim];
  }
}

}  // namespace

namespace {

/// As decode(), of the sides that pages have.
void decode_sides(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out) {
  Cache& cache = sequence.cache;
  const Sequence::PageList& list = sequence.list(selection.layer, selection.head);
  const HeadShape& head = cache.layer(selection.layer).head;
  PageReader reader(sequence, selection.layer, selection.head, cache.allocator);
  int32_t first_slot = 0;
  size_t done = 0;
  for (size_t index = 0; index < list.size(); ++index) {
    const Page* page = list[index];
    const int32_t begin = std::max(selection.begin - first_slot, 0);
    const int32_t end = std::min(selection.begin + selection.n - first_slot, page->count);
    first_slot += page->count;
    if (begin >= end) continue;
    reader.read(index);
    reader.decode(begin, end,
                  {out.k != nullptr ? out.k + done * static_cast<size_t>(head.keys) : nullptr,
                   out.v != nullptr ? out.v + done * static_cast<size_t>(head.values) : nullptr,
                   out.positions != nullptr ? out.positions + done : nullptr});
    done += static_cast<size_t>(end - begin);
  }
  unscale(sequence, selection, out);
}

/// Keys of a latent: its values, and the channels behind them; some slots at a time.
void decode_latent(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out) {
  constexpr int32_t kSlots = 64;
  const HeadShape& head = sequence.cache.layer(selection.layer).head;
  const auto key_dim = static_cast<size_t>(head.keys);
  const auto value_dim = static_cast<size_t>(head.values);
  Vector<float> keys(kSlots * key_dim, 0.0F, sequence.cache.allocator);
  Vector<float> values(kSlots * value_dim, 0.0F, sequence.cache.allocator);
  for (int32_t done = 0; done < selection.n; done += kSlots) {
    SlotSelection part = selection;
    part.begin += done;
    part.n = std::min(kSlots, selection.n - done);
    const auto first = static_cast<size_t>(done);
    decode_sides(sequence, part,
                 {keys.data(), values.data(), out.positions != nullptr ? out.positions + first : nullptr});
    for (size_t i = 0; i < static_cast<size_t>(part.n); ++i) {
      float* key = std::copy_n(values.data() + i * value_dim, value_dim, out.k + (first + i) * (value_dim + key_dim));
      std::copy_n(keys.data() + i * key_dim, key_dim, key);
    }
    if (out.v != nullptr) {
      std::copy_n(values.data(), static_cast<size_t>(part.n) * value_dim, out.v + first * value_dim);
    }
  }
}

}  // namespace

void decode(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out) {
  const int32_t held = sequence.slots(selection.layer, selection.head);
  if (selection.n < 1) fail(KVQ_E_ARGUMENT, "n is %d, must be at least 1", selection.n);
  if (selection.begin < 0 || static_cast<int64_t>(selection.begin) + selection.n > held) {
    fail(KVQ_E_ARGUMENT, "begin is %d and n is %d, but the head holds %d slots", selection.begin, selection.n, held);
  }
  if (sequence.cache.layer(selection.layer).head.is_latent && out.k != nullptr) {
    return decode_latent(sequence, selection, out);
  }
  decode_sides(sequence, selection, out);
}

}  // namespace kvq
