#include "backend/cpu/commvq/append.h"

#include "core/float16.h"
#include "core/position_turns.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/model_coder.h"
#include "formats/commvq/value_blocks.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::cpu {
namespace {

static_assert(kValueBlock == kPageSlots);

int32_t position(const PageWrite& write, int32_t slot) {
  return write.positions != nullptr ? write.positions[slot] : write.first_position + slot;
}

}  // namespace

CodedPages::CodedPages(const TokenBatch& tokens, Allocator& scratch)
    : tokens_(tokens),
      plain_(SideFormat{}, SideFormat{}, tokens.head_dim),
      memory_(scratch),
      staging_(StlAllocator<std::byte*>(scratch)),
      writes_(StlAllocator<Write>(scratch)),
      groups_(StlAllocator<Group>(scratch)),
      group_of_(StlAllocator<size_t>(scratch)),
      numbers_(StlAllocator<float>(scratch)) {}

void CodedPages::begin(std::span<const PageWrite* const> slice) {
  staging_.assign(slice.size(), nullptr);
  writes_.clear();
  if (!tokens_.codes.has_value()) return;
  size_t filled = 0;
  for (const PageWrite* write : slice) {
    if (write->format->uses_codebook() && write->token_count > 0) ++filled;
  }
  memory_.resize(filled * plain_.bytes());
  std::byte* next = memory_.data();
  for (size_t i = 0; i < slice.size(); ++i) {
    const PageWrite& write = *slice[i];
    if (!write.format->uses_codebook()) continue;
    // A page that is only sealed lies in FP16 already.
    const std::byte* page = write.source;
    if (write.token_count > 0) {
      page = staging_[i] = next;
      next += plain_.bytes();
    }
    writes_.push_back({&write, page});
  }
  find_groups();
}

void CodedPages::find_groups() {
  std::sort(writes_.begin(), writes_.end(), [](const Write& a, const Write& b) {
    return a.write->index != b.write->index ? a.write->index < b.write->index : a.write->head < b.write->head;
  });
  groups_.clear();
  group_of_.resize(writes_.size());
  size_t floats = 0;
  for (size_t first = 0; first < writes_.size();) {
    const bool spans = writes_[first].write->format->spans_heads();
    const size_t count = spans ? static_cast<size_t>(tokens_.kv_heads) : 1;
    std::fill_n(group_of_.begin() + static_cast<ptrdiff_t>(first), count, groups_.size());
    groups_.push_back({first, count, floats});
    floats += 2 * side_floats(groups_.back());
    first += count;
  }
  numbers_.resize(floats);
}

size_t CodedPages::side_floats(const Group& group) const {
  return group.count * kPageSlots * static_cast<size_t>(tokens_.head_dim);
}

void CodedPages::encode(Parallel& parallel) {
  if (writes_.empty()) return;
  parallel.run(static_cast<int32_t>(writes_.size()), [this](int32_t i) noexcept { load(static_cast<size_t>(i)); });
  Allocator& scratch = *numbers_.get_allocator().source;
  const LayerCoder& coder = tokens_.codes->coder;
  const PageFormat& format = *writes_.front().write->format;
  if (format.keys.is_coded()) {
    const size_t work = coder.keys.front().work_bytes() + static_cast<size_t>(kPageSlots * 2 * coder.shape.keys.stages);
    for_each_block(parallel, scratch, writes_.size(), work / sizeof(float) + 1,
                   [this](size_t i, float* memory) noexcept { encode_keys(i, memory); });
  }
  if (format.values.is_coded()) {
    const ValueEncoder& encoder = coder.values.front();
    const bool of_layer = coder.shape.values.scope == Scope::kLayer;
    const size_t floats = encoder.workspace_floats() + kPageSlots * encoder.words();
    for_each_block(parallel, scratch, of_layer ? groups_.size() : writes_.size(), floats,
                   [&](size_t i, float* memory) noexcept { encode_values(of_layer ? groups_[i].first : i, memory); });
  }
}

/// A page as floats, keys before RoPE.
void CodedPages::load(size_t index) noexcept {
  const auto& [write, page] = writes_[index];
  const Group& group = group_of(index);
  const auto dim = static_cast<size_t>(tokens_.head_dim);
  const int32_t used = write->kept + write->token_count;
  std::array<float, kMaxHeadDim> turn;
  float* key = keys(group) + (index - group.first) * dim;
  float* value = key + side_floats(group);
  const auto* key_halves = reinterpret_cast<const uint16_t*>(page);
  const auto* value_halves = reinterpret_cast<const uint16_t*>(page + plain_.key_bytes());
  for (int32_t slot = 0; slot < kPageSlots; ++slot, key += group.count * dim, value += group.count * dim) {
    for (int32_t channel = 0; channel < tokens_.head_dim; ++channel) {
      key[channel] = from_float16(key_halves[float16::index(Side::kKeys, tokens_.head_dim, slot, channel)]);
      value[channel] = from_float16(value_halves[float16::index(Side::kValues, tokens_.head_dim, slot, channel)]);
    }
    if (slot >= used || !write->format->keys.is_coded()) continue;
    tokens_.codes->turns.turn(position(*write, slot), turn.data());
    turn_back(*tokens_.rope, turn.data(), key);
  }
}

void CodedPages::encode_keys(size_t index, float* work) const noexcept {
  const PageWrite& write = *writes_[index].write;
  const Group& group = group_of(index);
  const LayerCoder& coder = tokens_.codes->coder;
  const auto dim = static_cast<size_t>(tokens_.head_dim);
  const commvq::KeyLayout layout = commvq::key_layout(coder.shape);
  const bool of_layer = coder.shape.keys.norms == Scope::kLayer;
  const size_t row = group.count * dim;
  std::memset(write.target, 0, write.format->key_bytes());

  std::array<float, kPageSlots> norms;
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    const float* token = keys(group) + slot * row;
    norms[slot] = of_layer ? key_norm({token, row}) : key_norm({token + (index - group.first) * dim, dim});
  }
  auto* own = reinterpret_cast<uint16_t*>(write.target + layout.norms.offset);
  const int32_t first = of_layer ? write.head * layout.norms.share : 0;
  for (int32_t i = 0; i < std::min(layout.norms.share, kPageSlots - first); ++i) {
    own[i] = to_float16(norms[static_cast<size_t>(first + i)]);
  }

  CodebookShape of_group = coder.shape;  // as the keys lie here
  of_group.kv_heads = static_cast<int32_t>(group.count);
  const int32_t stages = coder.shape.keys.stages;
  auto* bytes = reinterpret_cast<std::byte*>(work);
  auto* indices = reinterpret_cast<uint8_t*>(bytes + coder.keys.front().work_bytes());  // [slots][stages]{a, b}
  for (int32_t part = 0; part < coder.shape.groups(); ++part) {
    const KeyEncoder& encoder = coder.key_encoder(write.head, part);
    encoder.encode(key_pairs(of_group, keys(group), static_cast<int32_t>(index - group.first), part), norms.data(),
                   kPageSlots, tokens_.codes->effort.beam, {bytes, encoder.work_bytes()}, indices);
    for (int32_t stage = 0; stage < stages; ++stage) {
      uint8_t fields[2 * kPageSlots];
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        fields[slot] = indices[2 * (slot * stages + stage)];
        fields[kPageSlots + slot] = indices[2 * (slot * stages + stage) + 1];
      }
      layout.pack(fields, part * stages + stage, write.target);
    }
  }
}

/// Of the page's head, or of all heads that its group has.
void CodedPages::encode_values(size_t index, float* work) const noexcept {
  const Group& group = group_of(index);
  const LayerCoder& coder = tokens_.codes->coder;
  const auto dim = static_cast<size_t>(tokens_.head_dim);
  const commvq::ValueLayout layout = commvq::value_layout(coder.shape);
  const bool of_layer = coder.shape.values.scope == Scope::kLayer;
  const auto vector = static_cast<size_t>(of_layer ? 0 : writes_[index].write->head);
  const ValueEncoder& encoder = coder.values[vector];
  const float* vectors = keys(group) + side_floats(group) + (of_layer ? 0 : (index - group.first) * dim);
  auto* codes = reinterpret_cast<uint32_t*>(work + encoder.workspace_floats());  // [slots][words]
  std::array<uint16_t, kPageSlots> scales;
  encoder.encode_block(vectors, group.count * dim, kPageSlots, tokens_.codes->effort.flips, work, codes, scales.data());

  const size_t pages = of_layer ? group.count : 1;
  for (size_t page = 0; page < pages; ++page) {
    const PageWrite& write = *writes_[index + page].write;
    std::byte* side = write.target + write.format->key_bytes();
    std::memset(side, 0, write.format->value_bytes());
    auto* words = reinterpret_cast<uint32_t*>(side);
    const size_t first_bit = page * static_cast<size_t>(layout.lanes);
    for (int32_t lane = 0; lane < layout.lanes; ++lane) {
      const size_t bit = first_bit + static_cast<size_t>(lane);
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        if (is_set(codes + static_cast<size_t>(slot) * encoder.words(), bit)) layout.plane().put(words, lane, slot, 1);
      }
    }
    auto* own = reinterpret_cast<uint16_t*>(side + layout.scales.offset);
    const int32_t first_slot = of_layer ? write.head * layout.scales.share : 0;
    const int32_t count = std::min(layout.scales.share, kPageSlots - first_slot);
    for (int32_t i = 0; i < count; ++i) own[i] = scales[static_cast<size_t>(first_slot + i)];
  }
}

}  // namespace kvq::cpu
