#include "formats/commvq/encode.h"

#include "core/float16.h"
#include "formats/commvq/commvq.h"
#include "formats/float16/layout.h"

#include <algorithm>
#include <array>
#include <vector>

namespace kvq::commvq {
namespace {

static_assert(kValueBlock == kPageSlots);

bool is_of_layer(Scope scope) { return scope == Scope::kLayer; }

/// Writes the numbers of the slots in head `head`'s page.
void put_share(const TokenNumbers& layout, bool of_layer, int32_t head, const uint16_t* numbers, std::byte* side) {
  auto* own = reinterpret_cast<uint16_t*>(side + layout.offset);
  const int32_t first = of_layer ? head * layout.share : 0;
  std::copy_n(numbers + std::min(first, kPageSlots), std::clamp(kPageSlots - first, 0, layout.share), own);
}

}  // namespace

void read_side(const Context& context, Side side, const std::byte* float16, int32_t heads, int32_t head, int32_t used,
               const SlotPositions& positions, float* numbers) noexcept {
  const int32_t dim = context.shape().head_dim;
  const auto* stored = reinterpret_cast<const uint16_t*>(float16);
  std::array<float, kMaxTrainedDim> rotation;
  float* row = numbers + static_cast<ptrdiff_t>(head) * dim;
  for (int32_t slot = 0; slot < kPageSlots; ++slot, row += static_cast<ptrdiff_t>(heads) * dim) {
    for (int32_t channel = 0; channel < dim; ++channel) {
      row[channel] = from_float16(stored[float16::index(side, dim, slot, channel)]);
    }
    if (side == Side::kValues || slot >= used) continue;
    context.rotations.fill(positions[slot], rotation.data());
    undo_rope(context.rotations.rope(), rotation.data(), row);
  }
}

size_t key_work_floats(const Context& context) {
  if (context.coder.keys.empty()) return 0;
  const size_t indices = static_cast<size_t>(kPageSlots * 2 * context.shape().keys.stages);
  return (context.coder.keys.front().work_bytes() + indices) / sizeof(float) + 1;
}

size_t value_work_floats(const Context& context) {
  if (context.coder.values.empty()) return 0;
  const ValueEncoder& encoder = context.coder.values.front();
  return encoder.workspace_floats() + kPageSlots * encoder.words();
}

KeyFits encode_keys(const Context& context, const GroupSide& group, int32_t head, std::byte* out,
                    float* work) noexcept {
  const LayerCoder& coder = context.coder;
  const auto dim = static_cast<size_t>(coder.shape.head_dim);
  const KeyLayout layout = key_layout(coder.shape);
  const bool of_layer = is_of_layer(coder.shape.keys.norms);
  const size_t row = static_cast<size_t>(group.heads) * dim;

  std::array<float, kPageSlots> norms;
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    const float* token = group.numbers + slot * row;
    norms[slot] = of_layer ? key_norm({token, row}) : key_norm({token + static_cast<size_t>(head) * dim, dim});
  }

  CodebookShape of_group = coder.shape;  // in the layout of `keys`
  of_group.kv_heads = group.heads;
  const int32_t stages = coder.shape.keys.stages;
  auto* bytes = reinterpret_cast<std::byte*>(work);
  auto* indices = reinterpret_cast<uint8_t*>(bytes + coder.keys.front().work_bytes());  // [slots][stages]{a, b}
  KeyFits fits;
  for (int32_t part = 0; part < coder.shape.groups(); ++part) {
    const KeyEncoder& encoder = coder.key_encoder(group.first_head + head, part);
    encoder.encode(key_pairs(of_group, group.numbers, head, part), norms.data(), kPageSlots, context.effort.beam,
                   {bytes, encoder.work_bytes()}, indices, fits.data());
    for (int32_t stage = 0; stage < stages; ++stage) {
      uint8_t fields[kIndexFields];
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        fields[slot] = indices[2 * (slot * stages + stage)];
        fields[kPageSlots + slot] = indices[2 * (slot * stages + stage) + 1];
      }
      layout.pack(fields, part * stages + stage, out);
    }
  }
  return fits;
}

void write_norms(const Context& context, const GroupSide& group, int32_t head, const KeyFits* fits,
                 std::byte* out) noexcept {
  const bool of_layer = is_of_layer(context.shape().keys.norms);
  const int32_t first = of_layer ? 0 : head;
  const int32_t end = of_layer ? group.heads : head + 1;
  std::array<uint16_t, kPageSlots> norms;
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    KeyFit token;
    for (int32_t other = first; other < end; ++other) token.add(fits[other][slot]);
    norms[slot] = token.gain();
  }
  put_share(key_layout(context.shape()).norms, of_layer, group.first_head + head, norms.data(), out);
}

ValueCodes encode_values(const Context& context, const GroupSide& group, int32_t head, float* work) noexcept {
  const LayerCoder& coder = context.coder;
  const auto dim = static_cast<size_t>(coder.shape.head_dim);
  const bool of_layer = is_of_layer(coder.shape.values.scope);
  const ValueEncoder& encoder = coder.values[static_cast<size_t>(of_layer ? 0 : group.first_head + head)];
  const float* vectors = group.numbers + (of_layer ? 0 : static_cast<size_t>(head) * dim);
  auto* bits = reinterpret_cast<uint32_t*>(work + encoder.workspace_floats());
  ValueCodes codes{bits, encoder.words(), {}};
  encoder.encode_block(vectors, static_cast<size_t>(group.heads) * dim, kPageSlots, context.effort.flips,
                       ValueScale::kUnbiased, work, bits, codes.scales.data());
  return codes;
}

void write_values(const Context& context, const ValueCodes& codes, int32_t part, std::byte* out) noexcept {
  const ValueLayout layout = value_layout(context.shape());
  auto* words = reinterpret_cast<uint32_t*>(out);
  const auto first_bit = static_cast<size_t>(part) * static_cast<size_t>(layout.lanes);
  for (int32_t lane = 0; lane < layout.lanes; ++lane) {
    const size_t bit = first_bit + static_cast<size_t>(lane);
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      if (is_set(codes.bits + static_cast<size_t>(slot) * codes.words, bit)) layout.plane().put(words, lane, slot, 1);
    }
  }
  put_share(layout.scales, is_of_layer(context.shape().values.scope), part, codes.scales.data(), out);
}

namespace {

void encode_keys(const Context& context, const GroupSide& group, std::span<std::byte* const> out) {
  std::vector<float> work(key_work_floats(context));
  std::vector<KeyFits> fits;
  fits.reserve(static_cast<size_t>(group.heads));
  for (int32_t head = 0; head < group.heads; ++head) {
    fits.push_back(encode_keys(context, group, head, out[static_cast<size_t>(head)], work.data()));
  }
  for (int32_t head = 0; head < group.heads; ++head) {
    write_norms(context, group, head, fits.data(), out[static_cast<size_t>(head)]);
  }
}

void encode_values(const Context& context, const GroupSide& group, std::span<std::byte* const> out) {
  std::vector<float> work(value_work_floats(context));
  const bool shared = is_of_layer(context.shape().values.scope);
  ValueCodes codes{};
  for (int32_t head = 0; head < group.heads; ++head) {
    if (!shared || head == 0) codes = encode_values(context, group, head, work.data());
    write_values(context, codes, shared ? head : 0, out[static_cast<size_t>(head)]);
  }
}

}  // namespace

void encode(const SideToEncode& side) {
  const Context& context = context_of(*side.context);
  const auto heads = static_cast<int32_t>(side.float16.size());
  std::vector<float> numbers(static_cast<size_t>(kPageSlots * heads * context.shape().head_dim));
  for (int32_t head = 0; head < heads; ++head) {
    read_side(context, side.side, side.float16[static_cast<size_t>(head)], heads, head, side.used, side.positions,
              numbers.data());
  }
  const GroupSide group{numbers.data(), heads, side.first_head};
  if (side.side == Side::kKeys) {
    encode_keys(context, group, side.out);
  } else {
    encode_values(context, group, side.out);
  }
}

}  // namespace kvq::commvq
