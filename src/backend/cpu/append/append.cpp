#include "backend/cpu/append/append.h"

#include "backend/cpu/append/angle_table.h"
#include "backend/cpu/append/filled_pages.h"
#include "backend/cpu/append/range_check.h"
#include "backend/cpu/dispatch/kernels.h"
#include "core/scratch.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace kvq::cpu {
namespace {

/// Tokens with rotation angles in memory at once.
constexpr int32_t kSliceTokens = 1024;
// Rough throughput of one thread, to decide whether a loop is worth sharing.
constexpr double kScalarsStoredPerMicrosecond = 1500.0;
constexpr double scalars_sealed_per_microsecond(CodeType code) {
  if (code.is_trellis()) return 400.0;
  return code.has_gains() && code.bits >= 3 ? 2000.0 : 3500.0;
}

/// Work space of a page's encoders.
size_t encode_bytes(const KernelTable& kernels, const PageFormat& format) {
  size_t bytes = 0;
  for (const Side side : {Side::kKeys, Side::kValues}) {
    const RoomKernel room_bytes = kernels.side(format.side(side)).room_bytes;
    if (room_bytes != nullptr) bytes = std::max(bytes, room_bytes(format.head.of(side)));
  }
  return bytes;
}

/// A sealed page in FP16, and its encoders' work space.
size_t room_bytes(const PageFormat& plain, size_t encode_bytes) {
  MemoryCutter room(nullptr);
  room.take<std::byte>(plain.bytes());
  room.take<std::byte>(encode_bytes);
  return room.used();
}

size_t rooms_at_once(const Parallel& parallel) {
  constexpr size_t kThreads = 16;  // if the host does not report its number of threads
  return parallel.n_threads() > 0 ? static_cast<size_t>(parallel.n_threads()) : kThreads;
}

/// Tokens whose angles are in memory at once.
int32_t tokens_at_once(int32_t n) { return std::min(n, kSliceTokens + kPageSlots); }

/// One append call: groups of pages, on any number of threads.
class AppendCall {
 public:
  AppendCall(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels, Allocator& scratch)
      : tokens_(tokens),
        writes_(writes),
        kernels_(kernels),
        plain_(SideFormat{}, SideFormat{}, tokens.head),
        check_(tokens, writes),
        filled_(tokens, writes, kernels, plain_.bytes(), scratch),
        order_(writes.groups(), 0, scratch),
        rooms_(scratch) {
    // Order by tokens, not heads: the heads of a token are neighbours in memory.
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [this](size_t a, size_t b) {
      return first_token(a) != first_token(b) ? first_token(a) < first_token(b) : a < b;
    });
  }

  void run(Parallel& parallel, Allocator& scratch) {
    AngleTable angles(*tokens_.rope, kernels_.append->fill_rotation, tokens_.n, tokens_at_once(tokens_.n), parallel,
                      scratch);
    prepare_rooms(parallel);
    auto first = order_.begin();
    for (int32_t begin = 0; first != order_.end(); begin += kSliceTokens) {
      // The last page of a slice may reach beyond it.
      const int32_t covered = std::min(tokens_.n - begin, kSliceTokens + kPageSlots);
      angles.fill(tokens_.positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(covered)));
      const auto last = std::partition_point(
          first, order_.end(), [this, begin](size_t group) { return first_token(group) < begin + kSliceTokens; });
      const std::span<const size_t> slice(&*first, static_cast<size_t>(last - first));
      filled_.begin(slice);
      const size_t pages = slice.size() * writes_.group_size();
      parallel.run(static_cast<int32_t>(pages), microseconds(slice), [&](int32_t i) noexcept {
        const auto at = static_cast<size_t>(i);
        const PageWrite& write = page(slice, at);
        write_page(write, page(slice, std::min(at + 1, pages - 1)), angles.row(write.token_begin - begin),
                   filled_.staging(at));
      });
      if (!check_.failed()) filled_.encode(parallel, scratch);
      first = last;
    }
    if (!check_.failed()) return;
    for (const PageWrite& write : writes_.list()) clear_new_slots(write);
    check_.report();
  }

 private:
  void prepare_rooms(const Parallel& parallel) {
    size_t sealed = 0;
    for (const PageWrite& write : writes_.list()) {
      if (write.format->is_float16()) continue;
      ++sealed;
      encode_bytes_ = std::max(encode_bytes_, encode_bytes(kernels_, *write.format));
    }
    if (sealed > 0) rooms_.prepare(std::min(sealed, rooms_at_once(parallel)), room_bytes(plain_, encode_bytes_));
  }

  /// All pages of a group have the same tokens.
  int32_t first_token(size_t group) const { return writes_.of_group(group, 0).token_begin; }
  const PageWrite& page(std::span<const size_t> groups, size_t i) const {
    return writes_.of_group(groups[i / writes_.group_size()], i % writes_.group_size());
  }

  double microseconds(std::span<const size_t> groups) const {
    double sum = 0.0;
    for (size_t i = 0; i < groups.size() * writes_.group_size(); ++i) {
      const PageWrite& write = page(groups, i);
      sum += 1.0 * tokens_.head.sum() * write.token_count / kScalarsStoredPerMicrosecond;
      if (write.format->is_float16()) continue;
      for (const Side side : {Side::kKeys, Side::kValues}) {
        sum += tokens_.head.of(side) * kPageSlots / scalars_sealed_per_microsecond(write.format->side(side).code);
      }
    }
    return sum;
  }

  /// `next`: probably this thread's next write; `angles`: the row of the write's first token; `kept`: destination of
  /// the FP16 page that is encoded later with others, or null.
  void write_page(const PageWrite& write, const PageWrite& next, const float* angles, std::byte* kept) noexcept {
    if (write.format->is_float16()) {
      fill_page(write, next, angles, write.target);
      return;
    }
    const ScratchPool::Piece piece(rooms_);
    MemoryCutter memory(piece.data());
    auto* staging = memory.take<std::byte>(plain_.bytes());
    auto* room = memory.take<std::byte>(encode_bytes_);
    const std::byte* page = write.source;
    if (write.token_count > 0) {
      std::byte* filled = kept != nullptr ? kept : staging;
      fill_page(write, next, angles, filled);
      page = filled;
    }
    if (check_.failed()) return;
    const PageFormat& format = *write.format;
    const int32_t used = write.kept + write.token_count;
    seal_side(Side::kKeys, format, page, used, {write.target, format.key_bytes()}, room);
    seal_side(Side::kValues, format, page + plain_.key_bytes(), used,
              {write.target + format.key_bytes(), format.value_bytes()}, room);
  }

  /// Write kept slots and new tokens to an FP16 page.
  void fill_page(const PageWrite& write, const PageWrite& next, const float* angles, std::byte* page) noexcept {
    const bool covered = write.token_count == kPageSlots && padded_dim(tokens_.head.values) == tokens_.head.values;
    if (write.kept == 0) {
      if (!covered) std::memset(page, 0, plain_.bytes());
    } else if (write.source != page) {
      std::memcpy(page, write.source, plain_.bytes());
    }
    if (write.token_count == 0) return;  // there may be no tensors
    auto* keys = reinterpret_cast<uint16_t*>(page);
    auto* values = reinterpret_cast<uint16_t*>(page + plain_.key_bytes());
    const HeadRows key_rows = rows(Side::kKeys, write, write);
    const HeadRows value_rows = rows(Side::kValues, write, next);
    if (!kernels_.append->store_keys(key_rows, *tokens_.rope, angles, write.kept, keys))
      check_.inspect(Side::kKeys, write);
    if (!kernels_.append->store_values(value_rows, write.kept, values)) check_.inspect(Side::kValues, write);
  }

  /// Rows of one side of a page, and the rows of the other side that are read next.
  HeadRows rows(Side side, const PageWrite& write, const PageWrite& next) const {
    const bool keys = side == Side::kKeys;
    return {.first = first_row(side, write),
            .later = first_row(keys ? Side::kValues : Side::kKeys, next),
            .stride = row_stride(side),
            .later_stride = row_stride(keys ? Side::kValues : Side::kKeys),
            .dtype = tokens_.dtype,
            .count = write.token_count,
            .head_dim = tokens_.head.of(side),
            .offsets = keys ? nullptr : write.scales.find(ScaleArray::kOffsets, write.head, tokens_.head),
            .factors = write.scales.find(keys ? ScaleArray::kKeys : ScaleArray::kValues, write.head, tokens_.head),
            .rounds_first = write.scales.rounds_first()};
  }

  const HeadStrides& strides(Side side) const { return side == Side::kKeys ? tokens_.k_strides : tokens_.v_strides; }
  const std::byte* first_row(Side side, const PageWrite& write) const {
    const size_t row = strides(side).at(static_cast<size_t>(write.token_begin), static_cast<size_t>(write.head));
    const void* tensor = side == Side::kKeys ? tokens_.k : tokens_.v;
    return static_cast<const std::byte*>(tensor) + row * dtype_bytes(tokens_.dtype);
  }
  size_t row_stride(Side side) const { return static_cast<size_t>(strides(side).token) * dtype_bytes(tokens_.dtype); }

  /// `out`: the side's bytes in the page, of which the codec may use fewer; zeros if the side is encoded later.
  void seal_side(Side side, const PageFormat& format, const std::byte* float16, int32_t used, std::span<std::byte> out,
                 std::byte* room) noexcept {
    const SideFormat& of_side = format.side(side);
    const EncodeKernel encode = kernels_.side(of_side).encode;
    const size_t bytes = encode != nullptr ? side_bytes(side, format) : 0;
    if (encode != nullptr) encode(side, of_side, tokens_.head.of(side), float16, used, out.data(), room);
    std::memset(out.data() + bytes, 0, out.size() - bytes);
  }

  /// Undo writes to a page already in use: attention reads its free slots, with weight 0.
  void clear_new_slots(const PageWrite& write) noexcept {
    if (write.source != write.target) return;
    const int32_t end = write.kept + write.token_count;
    float16::clear_slots(Side::kKeys, tokens_.head.keys, write.kept, end, write.target);
    float16::clear_slots(Side::kValues, tokens_.head.values, write.kept, end, write.target + plain_.key_bytes());
  }

  const TokenBatch& tokens_;
  const PageWrites& writes_;
  const KernelTable& kernels_;
  const PageFormat plain_;
  RangeCheck check_;
  FilledPages filled_;
  Vector<size_t> order_;  // group indices
  ScratchPool rooms_;     // per thread: a sealed page in FP16, and `encode_bytes_`
  size_t encode_bytes_ = 0;
};

}  // namespace

void append(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels, Parallel& parallel,
            Allocator& scratch) {
  const auto has_tokens = [](const PageWrite& write) { return write.token_count > 0; };
  if (std::ranges::any_of(writes.list(), has_tokens))
    return AppendCall(tokens, writes, kernels, scratch).run(parallel, scratch);
  // Pages are in FP16 already, which is quicker to read than tokens.
  TokenBatch none = tokens;
  none.n = 0;
  none.positions = {};
  AppendCall(none, writes, kernels, scratch).run(parallel, scratch);
}

uint64_t append_bytes(const ExpectedAppend& expected, const KernelTable& kernels, const Parallel& parallel) {
  const TokenBatch& tokens = expected.layer;
  const PageFormat plain(SideFormat{}, SideFormat{}, tokens.head);
  const uint64_t groups = expected.pages() / static_cast<uint64_t>(expected.heads_together);
  size_t encode = 0;
  uint64_t filled = 0;
  for (const PageFormat* format : expected.formats) {
    if (format->is_float16()) continue;
    encode = std::max(encode, encode_bytes(kernels, *format));
    if (format->needs_training()) filled = FilledPages::bytes_of(expected, kernels, parallel, plain.bytes());
  }
  const uint64_t rooms = std::min<uint64_t>(expected.pages(), rooms_at_once(parallel));
  return filled + Allocator::bytes_in_block(groups * sizeof(size_t)) +
         AngleTable::bytes_of(*tokens.rope, tokens.n, tokens_at_once(tokens.n)) +
         ScratchPool::bytes_in_block(rooms, room_bytes(plain, encode));
}

void copy_float16(Side side, const SideFormat& /*format*/, int32_t head_dim, const std::byte* float16, int32_t /*used*/,
                  std::byte* out, std::byte* /*room*/) {
  std::memcpy(out, float16, float16::plane(side, head_dim).bytes());
}

}  // namespace kvq::cpu
