// Walks over all codecs and kinds, and pages that a cache has sealed in any of them.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/handles.h"
#include "formats/codec.h"
#include "formats/float16/layout.h"
#include "support/codebook.h"
#include "support/float_formats.h"
#include "support/handles.h"
#include "support/random.h"

namespace kvq_test {

inline constexpr kvq::Side kSides[] = {kvq::Side::kKeys, kvq::Side::kValues};

/// A code type, with trained centres or with what it has by itself, and its name.
struct Kind {
  std::string name;
  kvq::SideFormat format;
};

/// Calls `use` with every kind and its codec.
template <typename Use>
void for_each_kind(const Use& use) {
  for (const kvq::Codec* codec : kvq::all_codecs()) {
    for (const kvq::NamedCode& each : codec->codes) {
      kvq::SideFormat format{.code = each.code};
      if (codec->always_hadamard) format.rotation = kvq::Rotation::kHadamard;
      if (codec->takes_centres) format.centre = kvq::Centre::kPageMean;
      use(*codec, Kind{std::string(each.name), format});
      if (!codec->takes_centres) continue;
      format.centre = kvq::Centre::kTrained;
      use(*codec, Kind{std::string(each.name) + "+centres", format});
    }
  }
}

/// The same with every name of a kind: rotated too, and without the mean of the page, where that is possible.
template <typename Use>
void for_each_name(const Use& use) {
  for_each_kind([&](const kvq::Codec& codec, const Kind& kind) {
    use(codec, kind.name);
    if (codec.takes_hadamard) use(codec, kind.name + "+hadamard");
    if (kind.format.centre == kvq::Centre::kPageMean) use(codec, kind.name + "+nocentre");
  });
}

/// Pages that a cache has sealed, beside what they were sealed from: the same tokens in a cache that keeps FP16.
class SealedPages {
 public:
  /// `tokens`: no multiple of 32, so that all full pages are sealed.
  SealedPages(kvq_context* context, const kvq_cache_options& options, const std::string& policy, const Codes* codes,
              int32_t tokens, int32_t position_step = 1)
      : cache_(codes != nullptr ? make_cache(context, options, policy, *codes) : make_cache(context, options, policy)),
        plain_cache_(make_cache(context, options, "fp16")),
        sequence_(filled(options, cache_, tokens, position_step)),
        plain_sequence_(filled(options, plain_cache_, tokens, position_step)),
        pages_(tokens / kvq::kPageSlots) {}

  const kvq::Cache& cache() const { return *cache_; }
  int32_t heads() const { return cache().layer(0).kv_heads; }
  int32_t count() const { return pages_; }
  const kvq::Page& page(int32_t head, int32_t index) const { return page_of(*sequence_, head, index); }
  const kvq::PageFormat& format() const { return *page(0, 0).format(); }
  const std::byte* sealed(kvq::Side side, int32_t head, int32_t index) const {
    return page(head, index).data + format().offset(side);
  }

  using Bytes = std::vector<std::byte>;
  /// One side of page `index` of all heads, as the codec's reference encodes it.
  std::vector<Bytes> encode(kvq::Side side, int32_t index) const {
    std::vector<Bytes> sides(static_cast<size_t>(heads()), Bytes(format().bytes(side)));
    const int32_t together = format().spans_heads() ? heads() : 1;
    for (int32_t first = 0; first < heads(); first += together) {
      std::vector<const std::byte*> from;
      std::vector<std::byte*> to;
      for (int32_t head = first; head < first + together; ++head) {
        const kvq::Page& plain = page_of(*plain_sequence_, head, index);
        from.push_back(plain.data + plain.format()->offset(side));
        to.push_back(sides[static_cast<size_t>(head)].data());
      }
      const kvq::Page& of_first = page(first, index);
      kvq::codec_of(format().side(side).code)
          .encode({.side = side,
                   .format = format(),
                   .first_head = first,
                   .float16 = from,
                   .out = to,
                   .used = of_first.count,
                   .positions = {of_first.positions, of_first.first_position},
                   .context = cache().context(0)});
    }
    return sides;
  }

  /// What a side decodes to by the reference, [32][head_dim].
  std::vector<double> decode(kvq::Side side, int32_t head, int32_t index, const std::vector<Bytes>& sides) const {
    std::vector<const std::byte*> of_heads;
    for (const Bytes& bytes : sides) of_heads.push_back(bytes.data());
    std::array<int32_t, kvq::kPageSlots> positions{};
    for (int32_t slot = 0; slot < kvq::kPageSlots; ++slot) {
      positions[static_cast<size_t>(slot)] = page(head, index).position(slot);
    }
    std::vector<float> rows(static_cast<size_t>(kvq::kPageSlots * cache().layer(0).head.keys));
    kvq::decode_side({.side = side,
                      .format = format(),
                      .layer = 0,
                      .head = head,
                      .sides = of_heads.data(),
                      .rope = cache().layer(0).rope,
                      .positions = positions.data()},
                     0, kvq::kPageSlots, rows.data());
    return {rows.begin(), rows.end()};
  }

  /// What was sealed, keys after RoPE: [32][head_dim].
  std::vector<double> original(kvq::Side side, int32_t head, int32_t index) const {
    const kvq::Page& plain = page_of(*plain_sequence_, head, index);
    const auto* halves = reinterpret_cast<const uint16_t*>(plain.data + plain.format()->offset(side));
    std::vector<double> rows;
    for (int32_t slot = 0; slot < kvq::kPageSlots; ++slot) {
      for (int32_t channel = 0; channel < cache().layer(0).head.keys; ++channel) {
        const uint16_t half = halves[kvq::float16::index(side, cache().layer(0).head.keys, slot, channel)];
        rows.push_back(decode_bits(half, kHalf));
      }
    }
    return rows;
  }

 private:
  static const kvq::Page& page_of(const kvq::Sequence& sequence, int32_t head, int32_t index) {
    return *sequence.list(0, head)[static_cast<size_t>(index)];
  }

  static Sequence filled(const kvq_cache_options& options, kvq_cache* cache, int32_t tokens, int32_t step) {
    const int32_t width = options.kv_heads * options.head_dim;
    const std::vector<float> k = normal_tensor(static_cast<size_t>(tokens * width), 3);
    const std::vector<float> v = normal_tensor(static_cast<size_t>(tokens * width), 4);
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < tokens; ++i) positions.push_back(5 + step * i);
    Sequence sequence(cache);
    // Pages are filled bit by bit, and at once.
    for (int32_t begin = 0, n = std::min(tokens, 23); begin < tokens; begin += n, n = tokens - begin) {
      const auto at = static_cast<size_t>(begin * width);
      append(sequence, 0, n, k.data() + at, v.data() + at, KVQ_F32,
             std::span(positions).subspan(static_cast<size_t>(begin), static_cast<size_t>(n)));
    }
    return sequence;
  }

  Cache cache_;
  Cache plain_cache_;
  Sequence sequence_;
  Sequence plain_sequence_;
  int32_t pages_;
};

/// Both sides in that format, from the first page on.
inline std::string policy_of(const kvq::Codec& codec, const std::string& name, int32_t group) {
  const std::string of_group = codec.takes_groups ? ", group: " + std::to_string(group) : "";
  return "version: 1\nkeys: " + name + "\nvalues: {format: " + name + of_group + "}\nsink: 0\n";
}

/// Codebooks for codecs that need one; for others a null pointer.
inline std::vector<const Codes*> codes_for(const kvq::Codec& codec, std::span<const Codes> choices) {
  if (codec.trained_as == nullptr || codec.takes_centres) return {nullptr};  // make_cache() has centres
  if (std::string(codec.trained_as) != "codebook") throw std::logic_error(codec.trained_as);  // make one here
  std::vector<const Codes*> codes;
  for (const Codes& each : choices) codes.push_back(&each);
  return codes;
}

}  // namespace kvq_test
