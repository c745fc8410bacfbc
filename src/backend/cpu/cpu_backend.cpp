#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/append/append.h"
#include "backend/cpu/append/vote.h"
#include "backend/cpu/attend/attend.h"
#include "backend/cpu/linear/linear.h"
#include "core/error.h"
#include "core/scaled_row.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

namespace kvq::cpu {
namespace {

/// Networks are used in host memory without a copy.
struct HostRouter final : Resident {
  explicit HostRouter(std::shared_ptr<const ModelRouter> router_) : router(std::move(router_)) {}

  std::shared_ptr<const ModelRouter> router;
};

}  // namespace

void CpuBackend::set_stream(void* /*stream*/) {
  fail(KVQ_E_UNSUPPORTED, "context computes on the CPU, which has no streams");
}

bool CpuBackend::knows(const PageFormat& format) const {
  const auto known = [this](const SideFormat& side) {
    if (codec_of(side.code).needs_training(side)) return kernels_.contexts[codec_of(side.code).number] != nullptr;
    const SideKernels& kernels = kernels_.side(side);
    return kernels.encode != nullptr && kernels.keys != nullptr && kernels.values != nullptr;
  };
  return known(format.keys) && known(format.values);
}

std::shared_ptr<const Resident> CpuBackend::make_resident(Allocator& allocator, const Codec& codec,
                                                          std::shared_ptr<const Trained> trained) {
  return codec.make_resident(allocator, parallel_, std::move(trained));
}

Owned<LayerContext> CpuBackend::make_context(Allocator& allocator, const Codec& codec, const Resident& resident,
                                             int32_t layer, const PageFormat& format, const OptionValues& options,
                                             const RotationTable& rotations) {
  Owned<LayerContext> context = codec.make_context(allocator, resident, layer, format, options, rotations);
  kernels_.contexts[codec.number]->complete(allocator, kernels_, *context);
  return context;
}

std::byte* CpuBackend::allocate(Allocator& allocator, size_t bytes) {
  return static_cast<std::byte*>(allocator.allocate(bytes, kDataAlignment));
}

void CpuBackend::release(Allocator& allocator, std::byte* data, size_t bytes) noexcept {
  allocator.release(data, bytes, kDataAlignment);
}

void CpuBackend::read(const PageFormat& format, const std::byte* data, std::byte* host) {
  std::memcpy(host, data, format.bytes());
}

const std::byte* CpuBackend::read_tensor(const std::byte* tensor, size_t /*bytes*/, Vector<std::byte>& /*room*/) {
  return tensor;
}

void CpuBackend::upload(const void* host, size_t bytes, std::byte* data) { std::memcpy(data, host, bytes); }

void CpuBackend::write(const PageFormat& format, const std::byte* host, std::byte* data) {
  std::memcpy(data, host, format.bytes());
}

Owned<LayerMirror> CpuBackend::make_mirror(Allocator& allocator, int32_t /*kv_heads*/) {
  return {nullptr, Deleter<LayerMirror>(allocator, 0, 0)};
}

// No mirrors exist: only the host appends.
void CpuBackend::read_lengths(std::span<const Owned<LayerMirror>> /*mirrors*/, std::span<int32_t> /*lengths*/) {}

void CpuBackend::append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> /*layers*/,
                        Allocator& scratch) {
  cpu::append(tokens, writes, kernels_, parallel_, scratch);
}

uint64_t CpuBackend::append_bytes(const ExpectedAppend& expected) const {
  return cpu::append_bytes(expected, kernels_, parallel_);
}

Owned<Workspace> CpuBackend::make_workspace(Allocator& allocator) {
  return make_owned<AttendWorkspace>(allocator, allocator);
}

uint64_t CpuBackend::workspace_bytes(std::span<const ExpectedCall> calls) {
  return cpu::workspace_bytes(calls, kernels_, parallel_.n_threads());
}

void CpuBackend::compact(const SlotCompaction& compaction) {
  const auto pages = static_cast<size_t>(compaction.pages_of_head);
  parallel_.run(static_cast<int32_t>(compaction.pages.size() / pages), [&](int32_t head) noexcept {
    float16::compact(compaction.format, compaction.pages.subspan(static_cast<size_t>(head) * pages, pages),
                     compaction.slots, compaction.first);
  });
}

void CpuBackend::reserve(const ExpectedCall& call, Workspace& workspace) {
  static_cast<AttendWorkspace&>(workspace).make_room(cpu::sizes_of(call, kernels_, parallel_.n_threads()));
}

void CpuBackend::attend(const AttendBatch& batch, Workspace& workspace) {
  cpu::attend(batch, kernels_, parallel_, static_cast<AttendWorkspace&>(workspace));
}
const float* CpuBackend::rotate(const StreamRotation& heads, Workspace& workspace) {
  return cpu::rotate(heads, parallel_, static_cast<AttendWorkspace&>(workspace));
}

void CpuBackend::copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void CpuBackend::clear(void* data, size_t bytes) { std::memset(data, 0, bytes); }

void CpuBackend::add(float* to, const float* from, size_t n) noexcept {
  std::transform(from, from + n, to, to, std::plus<>());
}

void CpuBackend::keep_queries(const QueriesToKeep& queries) noexcept {
  const AttendBatch& batch = queries.batch;
  std::array<float, kMaxHeadDim> channels;
  const int32_t dim = batch.head.whole_key();
  const std::span<const float> numbers(channels.data(), static_cast<size_t>(dim));
  uint16_t* row = queries.rows;
  for (int32_t i = 0; i < queries.count; ++i) {
    for (int32_t head = 0; head < batch.q_heads; ++head, row += scaled_row_words(dim)) {
      const size_t at = batch.q_strides.at(static_cast<size_t>(queries.first + i), static_cast<size_t>(head));
      read_floats(batch.q, batch.q_dtype, at, dim, channels.data());
      float largest = 0.0F;
      for (const float x : numbers) largest = std::max(largest, std::abs(x));
      const uint32_t exponent = row_exponent(std::bit_cast<uint32_t>(largest));
      const auto inverse = std::bit_cast<float>(inverse_bits(exponent));
      row[0] = static_cast<uint16_t>(exponent);
      std::ranges::transform(numbers, row + 1, [inverse](float x) { return to_finite_float16(x * inverse); });
    }
  }
}

void CpuBackend::read_queries(const KeptQueries& queries) {
  const uint16_t* row = queries.rows;
  float* to = queries.numbers;
  for (size_t i = 0; i < queries.n; ++i, row += scaled_row_words(queries.head_dim)) {
    const auto power = std::bit_cast<float>(power_bits(row[0]));
    to = std::transform(row + 1, row + scaled_row_words(queries.head_dim), to,
                        [power](uint16_t half) { return from_float16(half) * power; });
  }
}

void CpuBackend::select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) {
  Vector<HeadScores> masses(allocator);
  for (size_t head = 0; head < selection.masses.size(); ++head) {
    masses.emplace_back(selection.masses[head], static_cast<size_t>(selection.counts[head]));
  }
  select_slots(allocator, selection.eviction, masses, selection.total, slots);
}

void CpuBackend::take(float* to, const float* from, std::span<const int32_t> slots) {
  for (const int32_t slot : slots) *to++ = from[slot];
}

namespace {

/// Copy the moved slots of one side of a page.
void move_side(const SlotMove& move, const Page& page, Side side, std::byte* target) noexcept {
  constexpr int32_t kSlots = 8;  // decoded at a time
  std::array<float, static_cast<size_t>(kSlots * kMaxHeadDim)> decoded;
  std::array<int32_t, kPageSlots> positions;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    positions[static_cast<size_t>(slot)] = page.position(std::min(slot, page.count - 1));
  }
  const PageFormat& format = *page.format();
  const PageFormat plain(SideFormat{}, SideFormat{}, format.head);
  const int32_t dim = format.head.of(side);
  const std::byte* data = page.data + format.offset(side);
  const EncodedSide encoded{.side = side,
                            .format = format,
                            .layer = 0,
                            .head = 0,
                            .sides = &data,
                            .rope = nullptr,
                            .positions = positions.data()};
  int32_t rank = move.rank;
  for (int32_t first = 0; first < page.count; first += kSlots) {
    uint32_t left = move.slots >> static_cast<uint32_t>(first) & ((1U << static_cast<uint32_t>(kSlots)) - 1);
    if (left == 0) continue;
    decode_side(encoded, first, std::min(kSlots, page.count - first), decoded.data());
    for (; left != 0; left &= left - 1, ++rank) {
      const float* from = decoded.data() + std::countr_zero(left) * dim;
      std::byte* plane = target + static_cast<size_t>(rank / kPageSlots) * plain.bytes() + plain.offset(side);
      float16::write_slot(side, dim, rank % kPageSlots, from, plane);
    }
  }
}

}  // namespace

void CpuBackend::move(const SlotMoves& moves) {
  parallel_.run(static_cast<int32_t>(moves.moves.size()), [&moves](int32_t i) noexcept {
    const SlotMove& move = moves.moves[static_cast<size_t>(i)];
    const Page& page = *moves.lists[move.head][move.index];
    std::byte* target = moves.targets[static_cast<size_t>(move.head)];
    for (const Side side : {Side::kKeys, Side::kValues}) move_side(move, page, side, target);
  });
}

void CpuBackend::weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) {
  cpu::weigh(batch, group, kernels_, parallel_, static_cast<AttendWorkspace&>(workspace), masses);
}

std::shared_ptr<const Resident> CpuBackend::make_resident(Allocator& allocator,
                                                          std::shared_ptr<const ModelRouter> router) {
  return std::allocate_shared<const HostRouter>(StlAllocator<HostRouter>(allocator), std::move(router));
}

void CpuBackend::vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const Resident& router,
                      int32_t group, std::span<int32_t> counts) {
  const ModelRouter& networks = *static_cast<const HostRouter&>(router).router;
  cpu::vote(pages, rotations, networks.groups[static_cast<size_t>(group)].network, parallel_, counts);
}

Owned<Resident> CpuBackend::make_resident(Allocator& allocator, weights::Matrix&& matrix) {
  return make_owned<HostMatrix>(allocator, std::move(matrix));
}

const weights::Matrix& CpuBackend::read(const Resident& matrix, std::optional<weights::Matrix>& /*copy*/) {
  return static_cast<const HostMatrix&>(matrix).matrix;
}

void CpuBackend::multiply(const LinearBatch& batch) {
  std::array<const weights::Matrix*, kMostSharedMatrices> matrices;
  std::transform(batch.matrices.begin(), batch.matrices.end(), matrices.begin(),
                 [](const Resident* each) { return &static_cast<const HostMatrix*>(each)->matrix; });
  cpu::linear({.matrices = {matrices.data(), batch.matrices.size()},
               .x = batch.x,
               .x_dtype = batch.x_dtype,
               .batch = batch.batch,
               .y = batch.y,
               .y_dtype = batch.y_dtype},
              *kernels_.linear, weights::codebook_of, parallel_, linear_scratch_);
}

}  // namespace kvq::cpu
