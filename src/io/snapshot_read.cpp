#include "core/error.h"
#include "io/snapshot.h"
#include "io/snapshot_layout.h"

#include <algorithm>
#include <array>
#include <climits>

namespace kvq::io {
namespace {

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(size_t n) {
    if (n > bytes_.size())
      fail(KVQ_E_FORMAT, "snapshot ends early: %zu bytes are left where %zu are needed", bytes_.size(), n);
    const auto taken = bytes_.first(n);
    bytes_ = bytes_.subspan(n);
    return taken;
  }
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

void check_match(const char* what, uint64_t found, uint64_t expected) {
  if (found == expected) return;
  fail(KVQ_E_MISMATCH, "snapshot has %s %llu, this cache %llu", what, static_cast<unsigned long long>(found),
       static_cast<unsigned long long>(expected));
}

/// Check everything that is known before pages are read.
void check_header(const SnapshotHeader& found, std::span<const std::byte> bytes, const Cache& cache) {
  const SnapshotHeader expected = snapshot_header(cache);
  if (!is_snapshot(bytes)) fail(KVQ_E_FORMAT, "snapshot does not begin with the mark of a kvq snapshot");
  check_match("version", found.version, expected.version);
  if (found.checksum_bytes != expected.checksum_bytes) {
    fail(KVQ_E_FORMAT, "snapshot has a checksum of %u bytes where %u belong", found.checksum_bytes,
         expected.checksum_bytes);
  }
  if (found.total_bytes != bytes.size()) {
    fail(KVQ_E_FORMAT, "snapshot says it is %llu bytes long, but size is %zu",
         static_cast<unsigned long long>(found.total_bytes), bytes.size());
  }
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored), sizeof(stored));
  if (stored != checksum(bytes.first(bytes.size() - sizeof(stored)))) {
    fail(KVQ_E_FORMAT, "snapshot is damaged: its checksum does not fit its bytes");
  }
  check_match("model_id", found.model_id, expected.model_id);
  check_match("n_layers", static_cast<uint32_t>(found.n_layers), static_cast<uint32_t>(expected.n_layers));
  check_match("kv_heads", static_cast<uint32_t>(found.kv_heads), static_cast<uint32_t>(expected.kv_heads));
  check_match("head_dim", static_cast<uint32_t>(found.head_dim), static_cast<uint32_t>(expected.head_dim));
  check_match("rope pairing", static_cast<uint32_t>(found.rope_pairing), static_cast<uint32_t>(expected.rope_pairing));
  check_match("rotary_dim", static_cast<uint32_t>(found.rotary_dim), static_cast<uint32_t>(expected.rotary_dim));
  check_match("rope frequencies (checksum)", found.rope_checksum, expected.rope_checksum);
  check_match("codebook or centres (checksum)", found.trained_checksum, expected.trained_checksum);
}

bool same(const SideRecord& a, const SideRecord& b) {
  return a.codec == b.codec && a.bits == b.bits && a.flags == b.flags && a.group == b.group;
}

const PageFormat* find_format(const PageRecord& record, const Cache& cache, size_t layer) {
  const auto fits = [&record, &cache](const PageFormat* format) {
    return same(record.keys, side_record(Side::kKeys, format->keys, cache.head_dim)) &&
           same(record.values, side_record(Side::kValues, format->values, cache.head_dim));
  };
  if (fits(&cache.float16)) return &cache.float16;
  const auto& formats = cache.layers[layer].formats;
  const auto found = std::find_if(formats.begin(), formats.end(), fits);
  if (found != formats.end()) return *found;
  const int32_t block = hadamard_block(cache.head_dim);
  if (block < cache.head_dim && ((record.keys.flags | record.values.flags) & kRotated) != 0) {
    fail(KVQ_E_MISMATCH,
         "snapshot has pages in layer %zu that were rotated in blocks of %d channels, as kvq no longer does for "
         "head_dim %d: append the tokens again",
         layer, block, cache.head_dim);
  }
  fail(KVQ_E_MISMATCH, "snapshot has pages with %d-bit keys and %d-bit values in layer %zu, unlike this cache's policy",
       record.keys.bits, record.values.bits, layer);
}

class SequenceReader {
 public:
  SequenceReader(Reader& reader, Sequence& sequence)
      : reader_(reader), sequence_(sequence), cache_(sequence.cache), aligned_(cache_.allocator) {}

  void read() {
    for (Sequence::Layer& layer : sequence_.layers) {
      const auto record = reader_.get<LayerRecord>();
      if (record.length < 0 || record.last_position < record.length - 1) {
        fail(KVQ_E_FORMAT, "snapshot has a layer of %d tokens that ends at position %d", record.length,
             record.last_position);
      }
      layer = {record.length, record.last_position};
    }
    for (size_t layer = 0; layer < sequence_.layers.size(); ++layer) {
      for (int32_t head = 0; head < cache_.kv_heads; ++head) {
        read_list(layer, sequence_.list_index(static_cast<int32_t>(layer), head));
      }
      if (cache_.layers[layer].spans_heads()) check_heads_agree(static_cast<int32_t>(layer));
    }
    if (reader_.left() != 0) fail(KVQ_E_FORMAT, "snapshot has %zu bytes after its last page", reader_.left());
  }

 private:
  void read_list(size_t layer, size_t index) {
    Sequence::PageList& list = sequence_.lists[index];
    const auto pages = reader_.get<int64_t>();
    if (pages < 0 || static_cast<uint64_t>(pages) > reader_.left() / sizeof(PageRecord)) {
      fail(KVQ_E_FORMAT, "snapshot has a list of %lld pages with %zu bytes left", static_cast<long long>(pages),
           reader_.left());
    }
    list.reserve(static_cast<size_t>(pages));
    int64_t slots = 0;
    int32_t previous = -1;
    for (int64_t i = 0; i < pages; ++i) {
      const auto left = static_cast<int32_t>(std::min<int64_t>(pages - i, kMaxRunPages));
      Page* page = read_page(index, previous, left);
      list.push_back(page);
      previous = page->last_position();
      slots += page->count;
    }
    const Sequence::Layer& expected = sequence_.layers[layer];
    const auto [least_slots, least_last] = sequence_.least_of_list(static_cast<int32_t>(layer), slots);
    if (cache_.eviction.budget == 0 && slots < expected.length) {
      fail(KVQ_E_MISMATCH,
           "snapshot has %lld of %d tokens in a list of layer %zu, as eviction leaves them, and this cache's policy "
           "evicts none: load it into a cache whose policy has eviction",
           static_cast<long long>(slots), expected.length, layer);
    }
    if (slots < least_slots || slots > expected.length || previous < least_last || previous > expected.last_position) {
      fail(KVQ_E_FORMAT, "snapshot has a list of %lld slots that ends at position %d in a layer of %d tokens",
           static_cast<long long>(slots), previous, expected.length);
    }
  }

  /// Pages that span heads must be at the same place of the other heads' lists.
  void check_heads_agree(int32_t layer) const {
    const Sequence::PageList& first = sequence_.list(layer, 0);
    for (int32_t head = 1; head < cache_.kv_heads; ++head) {
      const Sequence::PageList& list = sequence_.list(layer, head);
      if (std::equal(list.begin(), list.end(), first.begin(), first.end(), holds_same_tokens)) continue;
      fail(KVQ_E_FORMAT, "snapshot has other pages of head %d than of head 0 in layer %d, where pages span heads", head,
           layer);
    }
  }

  static bool holds_same_tokens(const Page* a, const Page* b) {
    if (a->format() != b->format() || a->count != b->count) return false;
    for (int32_t slot = 0; slot < a->count; ++slot) {
      if (a->position(slot) != b->position(slot)) return false;
    }
    return true;
  }

  Page* read_page(size_t index, int32_t previous, int32_t left) {
    const int32_t layer = sequence_.layer_of(index);
    const auto record = reader_.get<PageRecord>();
    const PageFormat* format = find_format(record, cache_, static_cast<size_t>(layer));
    const bool may_be_open = left == 1 && format->is_float16();
    if (record.count < (may_be_open ? 1 : kPageSlots) || record.count > kPageSlots || record.has_positions > 1 ||
        record.reserved != 0) {
      fail(KVQ_E_FORMAT, "snapshot has a page of %d slots where %d belong", record.count, kPageSlots);
    }
    std::array<int32_t, kPageSlots> positions{};
    if (record.has_positions == 1) {
      const auto stored = reader_.take(sizeof(positions));
      std::memcpy(positions.data(), stored.data(), sizeof(positions));
    }
    const auto data = reader_.take(format->bytes());
    check_positions(record, positions, previous);
    check_data(*format, record.count, data);
    // A snapshot does not say which FP16 pages a router chose.
    PageRun** run = sequence_.is_final(format, layer, false) ? &sequence_.run(index, format) : nullptr;
    // The number of following pages of this format is known only if all have it.
    const bool routed = cache_.layer_at(layer).is_routed();
    const auto before = static_cast<int32_t>(sequence_.lists[index].size());
    const int32_t capacity = routed ? Sequence::run_capacity(before, 1) : Sequence::run_capacity(0, left);
    Page* page = cache_.make_page(format, record.has_positions == 1, run, capacity);
    page->first_position = record.first_position;
    if (page->positions != nullptr) std::copy(positions.begin(), positions.end(), page->positions);
    cache_.backend.pages().write(*format, data.data(), page->data);
    cache_.set_count(page, record.count);
    return page;
  }

  static void check_positions(const PageRecord& record, const std::array<int32_t, kPageSlots>& positions,
                              int32_t previous) {
    if (record.first_position <= previous ||
        (record.has_positions == 0 && record.first_position > INT_MAX - (record.count - 1)) ||
        (record.has_positions == 1 && positions[0] != record.first_position)) {
      fail(KVQ_E_FORMAT, "snapshot has a page at position %d after position %d", record.first_position, previous);
    }
    if (record.has_positions == 0) return;
    const auto used = static_cast<size_t>(record.count);
    for (size_t i = 1; i < used; ++i) {
      if (positions[i] > positions[i - 1]) continue;
      fail(KVQ_E_FORMAT, "snapshot has position %d after position %d", positions[i], positions[i - 1]);
    }
    const auto rest = std::find_if(positions.begin() + record.count, positions.end(), [](int32_t p) { return p != 0; });
    if (rest == positions.end()) return;
    fail(KVQ_E_FORMAT, "snapshot has position %d in slot %td of a page of %d slots", *rest, rest - positions.begin(),
         record.count);
  }

  void check_data(const PageFormat& format, int32_t count, std::span<const std::byte> data) {
    aligned_.resize(data.size());
    std::byte* page = aligned_.data();
    std::memcpy(page, data.data(), data.size());
    if (!side_is_valid(Side::kKeys, format, page) || !side_is_valid(Side::kValues, format, page + format.key_bytes())) {
      fail(KVQ_E_FORMAT, "snapshot has a page with a number that is not finite, or that no page has there");
    }
    clear_unused(format, count, page);
    if (std::memcmp(page, data.data(), data.size()) != 0) {
      fail(KVQ_E_FORMAT, "snapshot has a page of %d slots with bytes other than 0 where it holds no number", count);
    }
  }

  Reader& reader_;
  Sequence& sequence_;
  Cache& cache_;
  AlignedBytes aligned_;  // a page's data, which the records around it leave unaligned
};

}  // namespace

bool is_snapshot(std::span<const std::byte> bytes) {
  uint64_t magic = 0;
  if (bytes.size() < sizeof(magic)) return false;
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  return magic == kSnapshotMagic;
}

void read_snapshot(std::span<const std::byte> bytes, Sequence& sequence) {
  Reader reader(bytes);
  const auto header = reader.get<SnapshotHeader>();
  if (reader.left() < sizeof(uint64_t)) fail(KVQ_E_FORMAT, "snapshot ends after its header");
  check_header(header, bytes, sequence.cache);
  Reader body(bytes.subspan(sizeof(SnapshotHeader), bytes.size() - sizeof(SnapshotHeader) - sizeof(uint64_t)));
  SequenceReader(body, sequence).read();
}

}  // namespace kvq::io
