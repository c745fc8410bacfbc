#include "cache/recode.h"
#include "core/error.h"
#include "core/window.h"
#include "formats/channel_scales.h"
#include "formats/format_name.h"
#include "io/snapshot.h"
#include "io/snapshot_layout.h"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <string>
#include <string_view>

namespace kvq::io {
namespace {

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(uint64_t n) {
    if (n > bytes_.size()) {
      fail(KVQ_E_FORMAT, "snapshot ends early: %zu bytes are left where %llu are needed", bytes_.size(),
           static_cast<unsigned long long>(n));
    }
    const auto taken = bytes_.first(static_cast<size_t>(n));
    bytes_ = bytes_.subspan(taken.size());
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

void check_shape(const ShapeRecord& found, const ShapeRecord& expected, int32_t layer) {
  const auto check = [layer](const char* what, uint64_t theirs, uint64_t ours) {
    if (theirs == ours) return;
    fail(KVQ_E_MISMATCH, "snapshot has %s %llu in layer %d, this cache %llu", what,
         static_cast<unsigned long long>(theirs), layer, static_cast<unsigned long long>(ours));
  };
  const auto check_number = [&check](const char* what, int32_t theirs, int32_t ours) {
    check(what, static_cast<uint32_t>(theirs), static_cast<uint32_t>(ours));
  };
  check_number("kv_heads", found.kv_heads, expected.kv_heads);
  check_number("key_dim", found.key_dim, expected.key_dim);
  check_number("value_dim", found.value_dim, expected.value_dim);
  check_number("rope pairing", found.rope_pairing, expected.rope_pairing);
  check_number("rotary_begin", found.rotary_begin, expected.rotary_begin);
  check_number("rotary_dim", found.rotary_dim, expected.rotary_dim);
  check_number("values_are_key_prefix", found.values_are_key_prefix, expected.values_are_key_prefix);
  check("rope frequencies (checksum)", found.rope_checksum, expected.rope_checksum);
  const int32_t theirs = found.window;
  const int32_t ours = expected.window;
  if (theirs == 0 || theirs == ours || (ours > 0 && theirs > ours)) return;
  fail(KVQ_E_MISMATCH,
       "snapshot has kept a %s of %d in layer %d, this cache sees %s%d (0: everything): load it with windows that see "
       "no further",
       theirs > 0 ? "window" : "chunk", std::abs(theirs), layer, ours < 0 ? "a chunk of " : "", std::abs(ours));
}

/// Check everything that is known before pages are read.
SnapshotHeader check_header(std::span<const std::byte> bytes, const Cache& cache) {
  Reader reader(bytes);
  const auto found = reader.get<SnapshotHeader>();
  const size_t least = sizeof(uint64_t) * ((found.version & kScaled) != 0 ? 2 : 1);
  if (reader.left() < least) fail(KVQ_E_FORMAT, "snapshot ends after its header");
  const SnapshotHeader expected = snapshot_header(cache);
  if (!is_snapshot(bytes)) fail(KVQ_E_FORMAT, "snapshot does not begin with the mark of a kvq snapshot");
  const uint32_t version = found.version & ~kVersionFlags;
  if (version != kSeveralSequences) check_match("version", version, kSnapshotVersion);
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
  const uint64_t scales = (found.version & kScaled) != 0 ? reader.get<uint64_t>() : 0;
  if (scales != 0 && (found.version & kOwnScales) != 0) {
    fail(KVQ_E_FORMAT, "snapshot says that its sequences have scales of their own and the cache's");
  }
  check_match("scales of channels (checksum, 0 for none)", scales, cache.scales_checksum());
  const bool has_records = (found.version & kShapes) != 0;
  const bool differ = needs_shapes(cache);
  const auto check_alike = [differ](bool theirs) {
    check_match("layers of different shapes (0: all alike)", theirs ? 1 : 0, differ ? 1 : 0);
  };
  if (!has_records) check_alike(false);
  for (int32_t layer = 0; has_records && layer < cache.n_layers; ++layer) {
    const auto record = reader.get<ShapeRecord>();
    const ShapeRecord own = shape_record(cache.layer(layer));
    if (!differ && !are_alike(record, own)) check_alike(true);
    check_shape(record, own, cache.number(layer));
  }
  if (found.trained_checksum != 0) {
    check_match("codebook or centres (checksum)", found.trained_checksum, trained_checksum(cache));
  }
  return found;
}

bool same(const SideRecord& a, const SideRecord& b) {
  return a.codec == b.codec && a.bits == b.bits && a.flags == b.flags && a.group == b.group;
}

/// The format that a record describes, or none.
std::optional<SideFormat> side_format(Side side, const SideRecord& record, const HeadShape& head) {
  const bool has_group = record.group == 32 || ((record.group == 64 || record.group == 128) && side == Side::kValues);
  if (!has_group) return std::nullopt;
  for (const Codec* codec : all_codecs()) {
    const uint8_t group = codec->takes_groups ? record.group : SideFormat{}.group;
    for (const NamedCode& code : codec->codes) {
      for (const Rotation rotation : {Rotation::kNone, Rotation::kHadamard}) {
        for (const Centre centre : {Centre::kPageMean, Centre::kNone, Centre::kTrained}) {  // values: as policies say
          const bool takes_centre = centre == Centre::kNone || codec->takes_centres;
          const bool takes_rotation =
              rotation == Rotation::kNone ? !codec->always_hadamard : codec->takes_hadamard || codec->always_hadamard;
          const SideFormat format{code.code, rotation, centre, group};
          if (takes_centre && takes_rotation && same(record, side_record(side, format, head.of(side)))) {
            return format;
          }
        }
      }
    }
  }
  return std::nullopt;
}

/// The same for both sides of a page that this cache can decode.
std::optional<PageFormat> page_format(const PageRecord& record, const Cache& cache, size_t layer) {
  const HeadShape& head = cache.layer(static_cast<int32_t>(layer)).head;
  const auto keys = side_format(Side::kKeys, record.keys, head);
  const auto values = side_format(Side::kValues, record.values, head);
  if (!keys || !values) return std::nullopt;
  const Trained* trained = cache.training.pages.get();
  PageFormat format(*keys, *values, head, trained);
  for (const SideFormat& side : {*keys, *values}) {
    const Codec& codec = codec_of(side.code);
    if (!codec.needs_training(side)) continue;
    if (trained == nullptr || std::string_view(codec.trained_as) != cache.training.codec->trained_as) {
      return std::nullopt;
    }
    codec.check(*trained, cache.shape(), format);
  }
  if (!cache.backend.pages().knows(format)) return std::nullopt;
  return format;
}

[[noreturn]] void refuse_format(const PageRecord& record, const Cache& cache, const Storage& storage, size_t layer,
                                bool recode) {
  const HeadShape& head = cache.layer(static_cast<int32_t>(layer)).head;
  const int32_t number = cache.number(static_cast<int32_t>(layer));
  for (const auto& [channels, flags] : {std::pair(head.keys, record.keys.flags), {head.values, record.values.flags}}) {
    const int32_t block = hadamard_block(channels);
    if (block == channels || (flags & kRotated) == 0) continue;
    fail(KVQ_E_MISMATCH,
         "snapshot has pages in layer %d that were rotated in blocks of %d channels, as kvq no longer does for "
         "heads of %d: append the tokens again",
         number, block, channels);
  }
  const auto keys = side_format(Side::kKeys, record.keys, head);
  const auto values = side_format(Side::kValues, record.values, head);
  const std::string found = keys && values ? format_pair_name({*keys, *values}) : "unknown formats";
  if (recode) {
    fail(KVQ_E_MISMATCH, "snapshot has pages of %s in layer %d, which this cache cannot decode", found.c_str(), number);
  }
  const PageFormat& own = *storage.layers[layer].formats.front();
  fail(KVQ_E_MISMATCH, "snapshot has pages of %s in layer %d, where the policy has %s: kvq_cache_load can recode them",
       found.c_str(), number, format_pair_name({own.keys, own.values}).c_str());
}

/// Format of a storage that a record names, or null.
const PageFormat* find_format(const PageRecord& record, const Cache& cache, const Storage& storage, size_t layer) {
  const auto fits = [&record](const PageFormat* format) {
    return same(record.keys, side_record(Side::kKeys, *format)) &&
           same(record.values, side_record(Side::kValues, *format));
  };
  const PageFormat* float16 = cache.layer(static_cast<int32_t>(layer)).float16;
  if (fits(float16)) return float16;
  const auto& formats = storage.layers[layer].formats;
  const auto found = std::find_if(formats.begin(), formats.end(), fits);
  return found != formats.end() ? *found : nullptr;
}

LayerRecord read_layer(Reader& reader) {
  const auto record = reader.get<LayerRecord>();
  if (record.length < 0 || record.last_position < record.length - 1) {
    fail(KVQ_E_FORMAT, "snapshot has a layer of %d tokens that ends at position %d", record.length,
         record.last_position);
  }
  return record;
}

int64_t read_page_count(Reader& reader) {
  const auto pages = reader.get<int64_t>();
  if (pages < 0 || static_cast<uint64_t>(pages) > reader.left() / sizeof(PageRecord)) {
    fail(KVQ_E_FORMAT, "snapshot has a list of %lld pages with %zu bytes left", static_cast<long long>(pages),
         reader.left());
  }
  return pages;
}

int32_t read_sequence_count(Reader& reader, const SnapshotHeader& header, const Cache& cache) {
  if ((header.version & ~kVersionFlags) == kSnapshotVersion) return 1;
  const auto n = reader.get<int64_t>();
  const auto layers = static_cast<uint64_t>(header.n_layers);
  const auto least = layers * sizeof(LayerRecord) + cache.n_lists() * sizeof(int64_t);
  if (n < 2 || static_cast<uint64_t>(n) > std::min<uint64_t>(reader.left() / least, INT32_MAX)) {
    fail(KVQ_E_FORMAT, "snapshot says that it has %lld sequences, with %zu bytes left", static_cast<long long>(n),
         reader.left());
  }
  return static_cast<int32_t>(n);
}

/// Read the scales that a layer's record announces, as LayerScales::numbers; empty if it has none.
Vector<float> read_own_scales(Reader& reader, const LayerShape& layer, Allocator& allocator, int32_t& tokens) {
  const auto record = reader.get<ScalesRecord>();
  const auto heads = static_cast<size_t>(layer.kv_heads);
  const auto key_dim = static_cast<size_t>(layer.head.keys);
  const auto value_dim = static_cast<size_t>(layer.head.values);
  const size_t scales = heads * (key_dim + value_dim);
  Vector<float> numbers(allocator);
  tokens = record.tokens;
  if (record.has_scales > 1 || (record.has_scales != 0 ? !are_calibration_tokens(tokens) : tokens != 0)) {
    fail(KVQ_E_FORMAT, "snapshot has scales of %d tokens, marked %u", tokens, record.has_scales);
  }
  if (record.has_scales == 0) return numbers;
  const size_t n = scales + heads * value_dim;
  const auto bytes = reader.take(n * sizeof(float));
  Vector<float> saved(n, 0.0F, allocator);
  std::memcpy(saved.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < saved.size(); ++i) {
    const bool is_scale = i < scales;
    const float low = is_scale ? kLeastScale : -kMaxValueOffset;
    const float high = is_scale ? 1.0F : kMaxValueOffset;
    if (saved[i] >= low && saved[i] <= high) continue;
    fail(KVQ_E_FORMAT, "snapshot has %g as %s of a channel", static_cast<double>(saved[i]),
         is_scale ? "scale" : "offset");
  }
  numbers.reserve(LayerScales::floats(layer.kv_heads, layer.head));
  append_scales_header(numbers, true);
  const std::span<const float> all(saved);
  for (size_t head = 0; head < heads; ++head) {
    append_head_scales(numbers, all.subspan(head * key_dim, key_dim),
                       all.subspan(heads * key_dim + head * value_dim, value_dim),
                       all.subspan(scales + head * value_dim, value_dim), layer.head);
  }
  return numbers;
}

/// Read a state's record, which must be behind that of `previous`, and its bytes, of which a shared state has none.
std::pair<StateRecord, std::span<const std::byte>> read_state(Reader& reader, const Cache& cache,
                                                              const StateRecord& previous) {
  const auto record = reader.get<StateRecord>();
  if (record.layer < 0 || static_cast<size_t>(record.layer) >= cache.model_layers().size()) {
    fail(KVQ_E_MISMATCH, "snapshot has a state of layer %d, this cache %zu layers", record.layer,
         cache.model_layers().size());
  }
  const bool follows = std::pair(record.layer, record.tokens) > std::pair(previous.layer, previous.tokens);
  if (record.tokens < 1 || record.bytes == 0 || record.reserved != 0 || !follows) {
    fail(KVQ_E_FORMAT, "snapshot has a state of layer %d after %d tokens, of %llu bytes, in the wrong place",
         record.layer, record.tokens, static_cast<unsigned long long>(record.bytes));
  }
  return {record, record.shared == 0 ? reader.take(record.bytes) : std::span<const std::byte>()};
}

/// Calls use(record, bytes) for each state of a sequence, and returns their number.
template <typename Use>
int64_t for_each_state(Reader& reader, const Cache& cache, const Use& use) {
  const auto n = reader.get<int64_t>();
  if (n < 0 || static_cast<uint64_t>(n) > reader.left() / sizeof(StateRecord)) {
    fail(KVQ_E_FORMAT, "snapshot has %lld states with %zu bytes left", static_cast<long long>(n), reader.left());
  }
  StateRecord previous{-1, 0, 0, 0, 0};
  for (int64_t i = 0; i < n; ++i) {
    const auto [record, bytes] = read_state(reader, cache, previous);
    use(record, bytes);
    previous = record;
  }
  return n;
}

class SequenceReader {
 public:
  /// `earlier`: sequences of the same snapshot that have been read; `flags`: of the version.
  SequenceReader(Reader& reader, Sequence& sequence, std::span<Sequence* const> earlier, bool recode, uint32_t flags)
      : reader_(reader),
        sequence_(sequence),
        cache_(sequence.cache),
        earlier_(earlier),
        recode_(recode),
        flags_(flags),
        aligned_(cache_.allocator) {}

  void read() {
    for (Sequence::Layer& layer : sequence_.layers) {
      const LayerRecord record = read_layer(reader_);
      layer = {record.length, record.last_position};
    }
    if ((flags_ & kOwnScales) != 0) read_scales();
    for (size_t layer = 0; layer < sequence_.layers.size(); ++layer) {
      bool spans_heads = sequence_.storage->layers[layer].spans_heads();
      for (int32_t head = 0; head < cache_.layer(static_cast<int32_t>(layer)).kv_heads; ++head) {
        read_list(layer, sequence_.list_index(static_cast<int32_t>(layer), head));
        const auto& list = sequence_.list(static_cast<int32_t>(layer), head);
        spans_heads =
            spans_heads || std::ranges::any_of(list, [](const Page* page) { return page->format()->spans_heads(); });
      }
      if (spans_heads) check_heads_agree(static_cast<int32_t>(layer));
      find_forgotten(static_cast<int32_t>(layer));
      if (recode_) recode_layer(sequence_, static_cast<int32_t>(layer));
    }
    end_waiting_with_sealed_pages(sequence_);
    if ((flags_ & kStates) != 0) read_states();
  }
  /// Whether a page in the file needs trained data.
  bool found_trained() const { return found_trained_; }

 private:
  void read_scales() {
    if (sequence_.calibration == nullptr) {
      sequence_.calibration = make_owned<Calibration>(cache_.allocator, cache_);
    }
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      int32_t tokens = 0;
      Vector<float> numbers = read_own_scales(reader_, cache_.layer(layer), cache_.allocator, tokens);
      if (numbers.empty()) continue;
      sequence_.calibration->layer(layer).scales = std::allocate_shared<const FoundScales>(
          StlAllocator<FoundScales>(cache_.allocator), cache_, cache_.layer(layer), std::move(numbers), tokens);
    }
  }

  /// Where the first list lacks tokens, those before its first gap, behind the pages of a sink, if windows hide them.
  void find_forgotten(int32_t layer) {
    const Sequence::PageList& list = sequence_.list(layer, 0);
    Sequence::Layer& state = sequence_.layers[static_cast<size_t>(layer)];
    if (cache_.layer(layer).window == 0 || !sequence_.evicted(layer, 0)) return;
    int32_t next = 0;
    size_t i = 0;
    while (i < list.size() && list[i]->first_position == next) next = list[i++]->last_position() + 1;
    const int32_t gone = i < list.size() ? list[i]->first_position - 1 : state.last_position;
    const int32_t next_query = std::min(state.last_position, INT32_MAX - 1) + 1;
    const int64_t hidden = newest_hidden(next_query, cache_.layer(layer).window);
    state.forgotten = static_cast<int32_t>(std::clamp<int64_t>(hidden, -1, gone));
  }

  void read_states() {
    for_each_state(reader_, cache_, [this](const StateRecord& record, std::span<const std::byte> bytes) {
      if (record.shared == 0) return sequence_.states.put(record.layer, record.tokens, bytes);
      const SavedStates::Shared* state = record.shared <= earlier_.size()
                                             ? earlier_[record.shared - 1]->states.find(record.layer, record.tokens)
                                             : nullptr;
      if (state == nullptr || (*state)->bytes.size() != record.bytes) {
        fail(KVQ_E_FORMAT, "snapshot has a state that it says sequence %u has too, which does not", record.shared - 1);
      }
      sequence_.states.share(*state);
    });
  }

  void read_list(size_t layer, size_t index) {
    Sequence::PageList& list = sequence_.lists[index];
    const int64_t pages = read_page_count(reader_);
    list.reserve(static_cast<size_t>(pages));
    int64_t slots = 0;
    int32_t previous = -1;
    OtherRun other(cache_);
    for (int64_t i = 0; i < pages; ++i) {
      const auto left = static_cast<int32_t>(std::min<int64_t>(pages - i, kMaxRunPages));
      Page* page = read_page(index, previous, left, other);
      list.push_back(page);
      previous = page->last_position();
      slots += page->count;
    }
    const Sequence::Layer& expected = sequence_.layers[layer];
    const auto [least_slots, least_last] = sequence_.least_of_list(static_cast<int32_t>(layer), slots);
    const bool may_lack = cache_.eviction.budget > 0 || cache_.layer(static_cast<int32_t>(layer)).window != 0;
    if (!may_lack && slots < expected.length) {
      fail(KVQ_E_MISMATCH,
           "snapshot has %lld of %d tokens in a list of layer %d, as eviction leaves them, and this cache's policy "
           "evicts none: load it into a cache whose policy has eviction",
           static_cast<long long>(slots), expected.length, cache_.number(static_cast<int32_t>(layer)));
    }
    if (slots < least_slots || slots > expected.length || previous < least_last || previous > expected.last_position) {
      fail(KVQ_E_FORMAT, "snapshot has a list of %lld slots that ends at position %d in a layer of %d tokens",
           static_cast<long long>(slots), previous, expected.length);
    }
  }

  /// Pages that span heads must be at the same place of the other heads' lists.
  void check_heads_agree(int32_t layer) const {
    const Sequence::PageList& first = sequence_.list(layer, 0);
    for (int32_t head = 1; head < cache_.layer(layer).kv_heads; ++head) {
      const Sequence::PageList& list = sequence_.list(layer, head);
      if (std::equal(list.begin(), list.end(), first.begin(), first.end(), holds_same_tokens)) continue;
      fail(KVQ_E_FORMAT, "snapshot has other pages of head %d than of head 0 in layer %d, where pages span heads", head,
           cache_.number(layer));
    }
  }

  static bool holds_same_tokens(const Page* a, const Page* b) {
    if (a->format() != b->format() || a->count != b->count) return false;
    for (int32_t slot = 0; slot < a->count; ++slot) {
      if (a->position(slot) != b->position(slot)) return false;
    }
    return true;
  }

  /// Run of a list's pages that will be recoded.
  struct OtherRun {
    explicit OtherRun(Cache& of) : cache(of) {}
    OtherRun(const OtherRun&) = delete;
    OtherRun& operator=(const OtherRun&) = delete;
    ~OtherRun() { cache.release(run); }

    Cache& cache;
    PageRun* run = nullptr;
  };

  Page* read_page(size_t index, int32_t previous, int32_t left, OtherRun& other) {
    const int32_t layer = sequence_.layer_of(index);
    const auto record = reader_.get<PageRecord>();
    if (record.shared != 0) return share_page(record, index, previous, left);
    const PageFormat* format = find_format(record, cache_, *sequence_.storage, static_cast<size_t>(layer));
    if (format == nullptr) {
      const std::optional<PageFormat> found =
          recode_ ? page_format(record, cache_, static_cast<size_t>(layer)) : std::nullopt;
      if (!found) refuse_format(record, cache_, *sequence_.storage, static_cast<size_t>(layer), recode_);
      format = cache_.format_of(*found);
    }
    found_trained_ = found_trained_ || format->needs_training();
    const bool may_be_open = left == 1 && format->is_float16();
    const Reader following = reader_;
    if (record.count < (may_be_open ? 1 : kPageSlots) || record.count > kPageSlots || record.has_positions > 1) {
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
    const auto place = static_cast<int32_t>(sequence_.lists[index].size());
    const bool stays_open = left <= sequence_.storage->recent || sequence_.ends_float16(layer, place);
    PageRun** run = nullptr;
    const bool is_known = sequence_.storage->run_number(layer, format) < sequence_.storage->runs_of_list();
    if (is_known && sequence_.is_final(format, layer, false)) {
      run = &sequence_.run(index, format);
    } else if (recode_ && !(format->is_float16() && stays_open)) {
      run = &other.run;
    }
    const bool fits = run != nullptr && *run != nullptr && (*run)->format == format && (*run)->used < (*run)->capacity;
    const bool ends_open = run == &other.run && format->is_float16();
    const int32_t most = ends_open ? left - sequence_.storage->recent : left;
    const int32_t capacity = fits ? 1
                                  : Sequence::run_capacity(0, alike(following, record, *format, most),
                                                           Sequence::most_run_pages(cache_.layer(layer)));
    Page* page = cache_.make_page(format, record.has_positions == 1, run, capacity);
    page->first_position = record.first_position;
    if (page->positions != nullptr) std::copy(positions.begin(), positions.end(), page->positions);
    cache_.backend.pages().write(*format, data.data(), page->data);
    cache_.set_count(page, record.count);
    return page;
  }

  /// Successive pages of a list from `first` on in its format, at most `most`. `after`: the bytes after its record.
  static int32_t alike(Reader after, const PageRecord& first, const PageFormat& format, int32_t most) {
    PageRecord record = first;
    int32_t pages = 1;
    for (; pages < most; ++pages) {
      const size_t bytes = (record.has_positions == 1 ? sizeof(int32_t) * kPageSlots : 0) + format.bytes();
      if (after.left() < bytes + sizeof(PageRecord)) break;
      after.take(bytes);
      record = after.get<PageRecord>();
      if (record.shared != 0 || !same(record.keys, first.keys) || !same(record.values, first.values)) break;
    }
    return pages;
  }

  /// A page that an earlier sequence has at the same place.
  Page* share_page(const PageRecord& record, size_t index, int32_t previous, int32_t left) {
    const size_t place = sequence_.lists[index].size();
    if (!same(record.keys, {}) || !same(record.values, {}) || record.has_positions != 0) {
      fail(KVQ_E_FORMAT, "snapshot has a page of sequence %u with formats of its own", record.shared - 1);
    }
    const bool is_known = record.shared <= earlier_.size() && place < earlier_[record.shared - 1]->lists[index].size();
    if (!is_known) {
      fail(KVQ_E_FORMAT, "snapshot has a page that it says sequence %u has too, which does not", record.shared - 1);
    }
    Page* page = earlier_[record.shared - 1]->lists[index][place];
    if (page->count != record.count || page->first_position != record.first_position ||
        (page->count < kPageSlots && left > 1) || page->first_position <= previous) {
      fail(KVQ_E_FORMAT, "snapshot has a page of %d slots at position %d, and another one of sequence %u in its place",
           record.count, record.first_position, record.shared - 1);
    }
    const Storage& storage = *sequence_.storage;
    if (!page->is_float16() &&
        storage.run_number(sequence_.layer_of(index), page->format()) == storage.runs_of_list()) {
      fail(KVQ_E_MISMATCH, "snapshot has a page of sequence %u in a format that the policy does not have",
           record.shared - 1);
    }
    cache_.retain(page);
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
  std::span<Sequence* const> earlier_;
  bool recode_;
  const uint32_t flags_;
  bool found_trained_ = false;
  AlignedBytes aligned_;  // a page's data, which the records around it leave unaligned
};

}  // namespace

bool is_snapshot(std::span<const std::byte> bytes) {
  uint64_t magic = 0;
  if (bytes.size() < sizeof(magic)) return false;
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  return magic == kSnapshotMagic;
}

namespace {

Reader body_of(std::span<const std::byte> bytes, const SnapshotHeader& header) {
  const size_t of_scales = (header.version & kScaled) != 0 ? sizeof(uint64_t) : 0;
  const size_t of_shapes =
      (header.version & kShapes) != 0 ? static_cast<size_t>(header.n_layers) * sizeof(ShapeRecord) : 0;
  const size_t begin = sizeof(SnapshotHeader) + of_scales + of_shapes;
  return Reader(bytes.subspan(begin, bytes.size() - begin - sizeof(uint64_t)));
}

void check_end(const Reader& reader) {
  if (reader.left() != 0) fail(KVQ_E_FORMAT, "snapshot has %zu bytes after its last page", reader.left());
}

/// Walks over the pages of a snapshot without loading them.
class Survey {
 public:
  Survey(const Reader& reader, Cache& cache, const Storage& storage, bool recode, uint32_t flags)
      : reader_(reader), cache_(cache), storage_(storage), recode_(recode), flags_(flags) {}

  void add_sequence() {
    Vector<LayerRecord> layers(cache_.allocator);
    layers.reserve(static_cast<size_t>(cache_.n_layers));
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      layers.push_back(read_layer(reader_));
      found_.tokens = std::max(found_.tokens, layers.back().length);
    }
    found_.bytes += sequence_bytes(cache_, storage_);
    const bool own_scales = (flags_ & kOwnScales) != 0;
    for (int32_t layer = 0; own_scales && layer < cache_.n_layers; ++layer) {
      int32_t tokens = 0;
      const Vector<float> numbers = read_own_scales(reader_, cache_.layer(layer), cache_.allocator, tokens);
      found_.bytes += numbers.empty() ? 0 : FoundScales::bytes_of(cache_.layer(layer));
    }
    if (own_scales && !storage_.calibrates) found_.bytes += Calibration::table_bytes(cache_);
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      other_bytes_ = 0;
      longest_ = 0;
      int64_t other_pages = found_.recoded_pages;
      for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) add_list(static_cast<size_t>(layer));
      if (found_.recoded_pages > other_pages) {
        other_bytes_ += recode_layer_bytes(cache_, storage_, longest_, largest_, found_.recoded_pages - other_pages);
      }
      most_other_bytes_ = std::max(most_other_bytes_, other_bytes_);
    }
    if ((flags_ & kStates) != 0) add_states();
  }

  /// After the last sequence.
  SnapshotContents result(const SnapshotHeader& header, int32_t sequences) const {
    check_end(reader_);
    SnapshotContents result = found_;
    result.sequences = sequences;
    result.trained = header.trained_checksum != 0 || (header.version & kScaled) != 0;
    result.needed = found_.bytes + most_other_bytes_ + AlignedBytes::bytes_of(largest_);
    return result;
  }

 private:
  void add_list(size_t layer) {
    const int64_t pages = read_page_count(reader_);
    found_.bytes += static_cast<uint64_t>(pages) * sizeof(Page*);
    longest_ = std::max(longest_, static_cast<size_t>(pages));
    for (int64_t i = 0; i < pages; ++i) {
      const auto record = reader_.get<PageRecord>();
      if (record.shared == 0) add_page(layer, record, i, pages);
    }
  }

  void add_states() {
    const int64_t n = for_each_state(reader_, cache_, [this](const StateRecord& record, std::span<const std::byte>) {
      if (record.shared == 0) found_.bytes += SavedState::bytes_of(record.bytes);
    });
    // Lists grow by doubling.
    found_.bytes += 2 * static_cast<uint64_t>(n) * sizeof(SavedStates::Shared);
  }

  void add_page(size_t layer, const PageRecord& record, int64_t index, int64_t pages) {
    const PageFormat* known = find_format(record, cache_, storage_, layer);
    const std::optional<PageFormat> other =
        known == nullptr && recode_ ? page_format(record, cache_, layer) : std::nullopt;
    if (known == nullptr && !other) refuse_format(record, cache_, storage_, layer, recode_);
    const PageFormat& format = known != nullptr ? *known : *other;
    reader_.take((record.has_positions != 0 ? sizeof(int32_t) * kPageSlots : 0) + format.bytes());
    const auto of_layer = static_cast<int32_t>(layer);
    const PageFormat* sealed = storage_.layer_at(of_layer).formats.front();
    const bool stays = storage_.stays_float16(of_layer, static_cast<int32_t>(index), static_cast<int32_t>(pages));
    const PageFormat* wanted = stays ? cache_.layer(of_layer).float16 : sealed;
    const bool is_recoded = recode_ && known != wanted && (known == nullptr || known->is_float16());
    const uint64_t records =
        sizeof(Page) + sizeof(PageRun) + (record.has_positions != 0 ? sizeof(int32_t) * kPageSlots : 0);
    found_.pages += 1;
    found_.bytes += records + (is_recoded ? wanted->bytes() : format.bytes());
    largest_ = std::max(largest_, format.bytes());
    if (!is_recoded) return;
    found_.recoded_pages += 1;
    other_bytes_ += records + format.bytes();
  }

  Reader reader_;
  Cache& cache_;
  const Storage& storage_;
  const bool recode_;
  const uint32_t flags_;
  SnapshotContents found_{};
  uint64_t other_bytes_ = 0;  // of a layer's pages in formats that they lose
  uint64_t most_other_bytes_ = 0;
  size_t largest_ = 0;
  size_t longest_ = 0;  // list of the layer
};

}  // namespace

int32_t snapshot_sequences(std::span<const std::byte> bytes, const Cache& cache) {
  const SnapshotHeader header = check_header(bytes, cache);
  Reader reader = body_of(bytes, header);
  return read_sequence_count(reader, header, cache);
}

void read_snapshot(std::span<const std::byte> bytes, std::span<Sequence* const> sequences, bool recode) {
  const Cache& cache = sequences.front()->cache;
  const SnapshotHeader header = check_header(bytes, cache);
  Reader reader = body_of(bytes, header);
  const int32_t n = read_sequence_count(reader, header, cache);
  if (static_cast<size_t>(n) != sequences.size()) {
    fail(KVQ_E_MISMATCH, "snapshot has %d sequences, not %zu", n, sequences.size());
  }
  bool trained = false;
  for (size_t i = 0; i < sequences.size(); ++i) {
    SequenceReader one(reader, *sequences[i], sequences.first(i), recode, header.version & kVersionFlags);
    one.read();
    trained = trained || one.found_trained();
  }
  check_end(reader);
  const auto has_states = [](const Sequence* sequence) { return !sequence->states.all().empty(); };
  if ((header.version & kStates) != 0 && std::ranges::none_of(sequences, has_states)) {
    fail(KVQ_E_FORMAT, "snapshot says that it has states, but has none");
  }
  if (trained == (header.trained_checksum != 0)) return;
  fail(KVQ_E_FORMAT, trained ? "snapshot has pages that a codebook or centres made, but no checksum of these"
                             : "snapshot has the checksum of a codebook or centres, but no page that these made");
}

SnapshotContents describe_snapshot(std::span<const std::byte> bytes, Cache& cache, const Storage& storage,
                                   bool recode) {
  const SnapshotHeader header = check_header(bytes, cache);
  Reader reader = body_of(bytes, header);
  const int32_t n = read_sequence_count(reader, header, cache);
  Survey survey(reader, cache, storage, recode, header.version & kVersionFlags);
  for (int32_t i = 0; i < n; ++i) survey.add_sequence();
  return survey.result(header, n);
}

}  // namespace kvq::io
