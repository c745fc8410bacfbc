#include "formats/float16/float16.h"
#include "io/snapshot.h"
#include "io/snapshot_layout.h"

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

void put_page(const Cache& cache, const Page& page, Writer& writer) {
  writer.put(PageRecord{.keys = side_record(Side::kKeys, page.format()->keys, cache.head_dim),
                        .values = side_record(Side::kValues, page.format()->values, cache.head_dim),
                        .count = page.count,
                        .first_position = page.first_position,
                        .has_positions = page.has_gaps() ? 1U : 0U,
                        .reserved = 0});
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
    if (count < kPageSlots) float16::clear_slots(side, format.head_dim, count, kPageSlots, begin);  // an open page
  }
}

size_t snapshot_size(const Sequence& sequence) {
  size_t bytes = sizeof(SnapshotHeader) + sequence.layers.size() * sizeof(LayerRecord) + sizeof(uint64_t);
  for (const Sequence::PageList& list : sequence.lists) {
    bytes += sizeof(int64_t);
    for (const Page* page : list) {
      bytes += sizeof(PageRecord) + page->format()->bytes();
      if (page->has_gaps()) bytes += sizeof(int32_t) * kPageSlots;
    }
  }
  return bytes;
}

void write_snapshot(const Sequence& sequence, std::span<std::byte> out) {
  Writer writer(out);
  SnapshotHeader header = snapshot_header(sequence.cache);
  header.total_bytes = out.size();
  writer.put(header);
  for (const Sequence::Layer& layer : sequence.layers) writer.put(LayerRecord{layer.length, layer.last_position});
  for (const Sequence::PageList& list : sequence.lists) {
    writer.put(static_cast<int64_t>(list.size()));
    for (const Page* page : list) put_page(sequence.cache, *page, writer);
  }
  writer.put(checksum(writer.written()));
}

}  // namespace kvq::io
