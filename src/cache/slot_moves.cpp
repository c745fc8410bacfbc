#include "cache/slot_moves.h"

#include "formats/float16/float16.h"

#include <algorithm>
#include <bit>

namespace kvq {
namespace {

void move_by_host(const Sequence& sequence, int32_t layer, std::span<const SlotMove> moves,
                  std::span<std::byte* const> targets, Allocator& scratch) {
  const Cache& cache = sequence.cache;
  const PageFormat& plain = *cache.layer(layer).float16;
  const int32_t key_dim = plain.head.keys;
  const int32_t value_dim = plain.head.values;
  const size_t page_bytes = plain.bytes();
  Vector<float> keys(static_cast<size_t>(kPageSlots * key_dim), 0.0F, scratch);
  Vector<float> values(static_cast<size_t>(kPageSlots * value_dim), 0.0F, scratch);
  Vector<std::byte> page(page_bytes, std::byte{0}, scratch);
  const SlotMove* last = nullptr;
  int32_t filled = -1;  // page of `last`'s head that `page` holds
  const auto flush = [&] {
    if (filled < 0) return;
    std::byte* target = targets[static_cast<size_t>(last->head)] + static_cast<size_t>(filled) * page_bytes;
    cache.backend.pages().write(plain, page.data(), target);
    std::fill(page.begin(), page.end(), std::byte{0});
    filled = -1;
  };
  for (const SlotMove& move : moves) {
    if (last != nullptr && last->head != move.head) flush();
    const Page& from = *sequence.list(layer, move.head)[static_cast<size_t>(move.index)];
    decode_page(sequence, layer, move.head, static_cast<size_t>(move.index), 0, from.count,
                {keys.data(), values.data(), nullptr}, scratch);
    int32_t rank = move.rank;
    for (uint32_t left = move.slots; left != 0; left &= left - 1, ++rank) {
      if (filled >= 0 && filled != rank / kPageSlots) flush();
      last = &move;
      filled = rank / kPageSlots;
      const int32_t row = std::countr_zero(left);
      const int32_t slot = rank % kPageSlots;
      float16::write_slot(Side::kKeys, key_dim, slot, keys.data() + row * key_dim, page.data());
      float16::write_slot(Side::kValues, value_dim, slot, values.data() + row * value_dim,
                          page.data() + plain.key_bytes());
    }
  }
  flush();
}

}  // namespace

void move_slots(const Sequence& sequence, int32_t layer, std::span<const SlotMove> moves,
                std::span<std::byte* const> targets, Allocator& scratch) {
  Weighing& weighing = sequence.cache.backend.weighing().require();
  const auto on_device = [&](const SlotMove& move) {
    return weighing.moves(*sequence.list(layer, move.head)[static_cast<size_t>(move.index)]->format());
  };
  if (!std::ranges::all_of(moves, on_device)) return move_by_host(sequence, layer, moves, targets, scratch);
  Vector<const Page* const*> lists(scratch);
  lists.reserve(sequence.heads(layer));
  for (const Sequence::PageList& list : sequence.lists_of(layer)) lists.push_back(list.data());
  weighing.move({.moves = moves, .lists = lists.data(), .targets = targets, .head = sequence.cache.layer(layer).head});
}

uint64_t move_bytes(const Cache& cache, size_t largest_page) {
  const auto heads = static_cast<uint64_t>(cache.most_kv_heads());
  int32_t dim = 0;
  for (const LayerShape& layer : cache.layers()) dim = std::max(dim, layer.head.largest());
  const size_t decoded = sizeof(float) * kPageSlots * static_cast<size_t>(dim);
  return 2 * Allocator::bytes_in_block(decoded) + Allocator::bytes_in_block(cache.most_float16_bytes()) +
         Allocator::bytes_in_block(heads * largest_page) + 3 * Allocator::bytes_in_block(heads * sizeof(void*));
}

}  // namespace kvq
