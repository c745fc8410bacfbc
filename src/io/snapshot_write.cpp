#include "formats/float16/float16.h"
#include "io/snapshot.h"
#include "io/snapshot_layout.h"

#include <algorithm>
#include <array>

namespace kvq::io {
namespace {

/// Appends to the caller's buffer, which has been sized by snapshot_size.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <typename T>
  void put(const T& value) {
    std::memcpy(reserve(sizeof(T)), &value, sizeof(T));
  }
  std::byte* reserve(size_t bytes) {
    std::byte* at = out_.data() + used_;
    used_ += bytes;
    return at;
  }
  std::span<const std::byte> written() const { return out_.first(used_); }

 private:
  std::span<std::byte> out_;
  size_t used_ = 0;
};

/// 1 + the number of the first sequence before number `n` that has a page at the same place; 0: none.
uint32_t earlier_holder(std::span<const Sequence* const> sequences, size_t n, size_t list, size_t index) {
  const Page* page = sequences[n]->lists[list][index];
  if (!page->is_shared()) return 0;
  for (size_t i = 0; i < n; ++i) {
    const Sequence::PageList& other = sequences[i]->lists[list];
    if (index < other.size() && other[index] == page) return static_cast<uint32_t>(i) + 1;
  }
  return 0;
}

/// The same for a state.
uint32_t earlier_holder(std::span<const Sequence* const> sequences, size_t n, const SavedStates::Shared& state) {
  for (size_t i = 0; i < n; ++i) {
    const SavedStates::Shared* other = sequences[i]->states.find(state->layer, state->tokens);
    if (other != nullptr && *other == state) return static_cast<uint32_t>(i) + 1;
  }
  return 0;
}

bool has_states(const Sequence* sequence) { return !sequence->states.all().empty(); }

bool needs_training(const Sequence* sequence) {
  return std::ranges::any_of(sequence->lists, [](const Sequence::PageList& list) {
    return std::ranges::any_of(list, [](const Page* page) { return page->format()->needs_training(); });
  });
}

bool has_own_scales(const Sequence* sequence) {
  for (int32_t layer = 0; layer < sequence->cache.n_layers; ++layer) {
    if (sequence->found_scales(layer) != nullptr) return true;
  }
  return false;
}

/// Arrays that a snapshot has of a layer's scales; the others are their inverses.
constexpr std::array<ScaleArray, 3> kSavedScales = {ScaleArray::kKeys, ScaleArray::kValues, ScaleArray::kOffsets};
constexpr int32_t saved_channels(ScaleArray array, const HeadShape& head) {
  return array == ScaleArray::kKeys ? head.keys : head.values;
}
/// Numbers of a KV head.
constexpr int32_t saved_scales(const HeadShape& head) { return head.keys + 2 * head.values; }

size_t own_scales_bytes(const Sequence& sequence) {
  const Cache& cache = sequence.cache;
  size_t bytes = 0;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const LayerShape& shape = cache.layer(layer);
    const auto numbers = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(saved_scales(shape.head));
    bytes += sizeof(ScalesRecord) + (sequence.found_scales(layer) != nullptr ? numbers * sizeof(float) : 0);
  }
  return bytes;
}

void put_own_scales(const Sequence& sequence, Writer& writer) {
  const Cache& cache = sequence.cache;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const FoundScales* found = sequence.found_scales(layer);
    writer.put(ScalesRecord{found != nullptr ? 1U : 0U, found != nullptr ? found->tokens() : 0});
    if (found == nullptr) continue;
    const LayerScales scales{found->numbers().data()};
    const LayerShape& shape = cache.layer(layer);
    for (const ScaleArray array : kSavedScales) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const size_t bytes = static_cast<size_t>(saved_channels(array, shape.head)) * sizeof(float);
        std::memcpy(writer.reserve(bytes), scales.of(array, head, shape.head), bytes);
      }
    }
  }
}

void put_states(std::span<const Sequence* const> sequences, size_t n, Writer& writer) {
  const std::span<const SavedStates::Shared> states = sequences[n]->states.all();
  writer.put(static_cast<int64_t>(states.size()));
  for (const SavedStates::Shared& state : states) {
    const uint32_t shared = earlier_holder(sequences, n, state);
    writer.put(StateRecord{state->layer, state->tokens, state->bytes.size(), shared, 0});
    if (shared == 0) std::ranges::copy(state->bytes, writer.reserve(state->bytes.size()));
  }
}

void put_page(const Cache& cache, const Page& page, uint32_t shared, Writer& writer) {
  if (shared != 0) {
    writer.put(PageRecord{.keys = {},
                          .values = {},
                          .count = page.count,
                          .first_position = page.first_position,
                          .has_positions = 0,
                          .shared = shared});
    return;
  }
  writer.put(PageRecord{.keys = side_record(Side::kKeys, *page.format()),
                        .values = side_record(Side::kValues, *page.format()),
                        .count = page.count,
                        .first_position = page.first_position,
                        .has_positions = page.has_gaps() ? 1U : 0U,
                        .shared = 0});
  if (page.has_gaps()) {
    std::byte* target = writer.reserve(sizeof(int32_t) * kPageSlots);
    std::memset(target, 0, sizeof(int32_t) * kPageSlots);
    std::memcpy(target, page.positions, sizeof(int32_t) * static_cast<size_t>(page.count));
  }
  std::byte* data = writer.reserve(page.format()->bytes());
  cache.backend.pages().read(*page.format(), page.data, data);
  clear_unused(*page.format(), page.count, data);
}

}  // namespace

void clear_unused(const PageFormat& format, int32_t count, std::byte* data) {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    std::byte* begin = data + format.offset(side);
    const size_t used = side_bytes(side, format);
    std::memset(begin + used, 0, format.bytes(side) - used);
    if (count < kPageSlots) float16::clear_slots(side, format.head.of(side), count, kPageSlots, begin);  // an open page
  }
}

size_t snapshot_size(std::span<const Sequence* const> sequences) {
  const bool own = std::ranges::any_of(sequences, has_own_scales);
  const bool scaled = sequences.front()->cache.scales_checksum() != 0;
  const bool states = std::ranges::any_of(sequences, has_states);
  const Cache& cache = sequences.front()->cache;
  const size_t of_shapes = has_shapes(cache) ? cache.layers().size() * sizeof(ShapeRecord) : 0;
  size_t bytes = sizeof(SnapshotHeader) + (scaled ? sizeof(uint64_t) : 0) + of_shapes +
                 (sequences.size() > 1 ? sizeof(int64_t) : 0) + sizeof(uint64_t);
  for (size_t n = 0; n < sequences.size(); ++n) {
    bytes += sequences[n]->layers.size() * sizeof(LayerRecord);
    if (own) bytes += own_scales_bytes(*sequences[n]);
    for (size_t list = 0; list < sequences[n]->lists.size(); ++list) {
      const Sequence::PageList& pages = sequences[n]->lists[list];
      bytes += sizeof(int64_t);
      for (size_t index = 0; index < pages.size(); ++index) {
        bytes += sizeof(PageRecord);
        if (earlier_holder(sequences, n, list, index) != 0) continue;
        bytes += pages[index]->format()->bytes() + (pages[index]->has_gaps() ? sizeof(int32_t) * kPageSlots : 0);
      }
    }
    if (!states) continue;
    bytes += sizeof(int64_t);
    for (const SavedStates::Shared& state : sequences[n]->states.all()) {
      bytes += sizeof(StateRecord) + (earlier_holder(sequences, n, state) == 0 ? state->bytes.size() : 0);
    }
  }
  return bytes;
}

void write_snapshot(std::span<const Sequence* const> sequences, std::span<std::byte> out) {
  const Cache& cache = sequences.front()->cache;
  Writer writer(out);
  SnapshotHeader header = snapshot_header(cache);
  const uint64_t scales = cache.scales_checksum();
  const bool own = std::ranges::any_of(sequences, has_own_scales);
  const bool states = std::ranges::any_of(sequences, has_states);
  header.version = (sequences.size() > 1 ? kSeveralSequences : kSnapshotVersion) | (scales != 0 ? kScaled : 0) |
                   (own ? kOwnScales : 0) | (has_shapes(cache) ? kShapes : 0) | (states ? kStates : 0);
  header.total_bytes = out.size();
  if (std::ranges::any_of(sequences, needs_training)) header.trained_checksum = trained_checksum(cache);
  writer.put(header);
  if (scales != 0) writer.put(scales);
  for (const LayerShape& layer : cache.layers()) {
    if (has_shapes(cache)) writer.put(shape_record(layer));
  }
  if (sequences.size() > 1) writer.put(static_cast<int64_t>(sequences.size()));
  for (size_t n = 0; n < sequences.size(); ++n) {
    for (const Sequence::Layer& layer : sequences[n]->layers) {
      writer.put(LayerRecord{layer.length, layer.last_position});
    }
    if (own) put_own_scales(*sequences[n], writer);
    for (size_t list = 0; list < sequences[n]->lists.size(); ++list) {
      const Sequence::PageList& pages = sequences[n]->lists[list];
      writer.put(static_cast<int64_t>(pages.size()));
      for (size_t index = 0; index < pages.size(); ++index) {
        put_page(cache, *pages[index], earlier_holder(sequences, n, list, index), writer);
      }
    }
    if (states) put_states(sequences, n, writer);
  }
  writer.put(checksum(writer.written()));
}

}  // namespace kvq::io
