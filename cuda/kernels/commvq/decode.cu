// Decodes CommVQ pages to FP16 pages, which every attention kernel reads.
#include "kernels/commvq/codebook.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/fragments.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/pages/layout.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;

__device__ int32_t pages_of(const CommvqLists& lists, int32_t head) { return lists.view.heads[head].pages; }

__device__ std::byte* stand_in(const CommvqLists& lists, int32_t which, int32_t index) {
  return lists.pages + (int64_t{which} * lists.longest + index) * lists.page_bytes;
}

/// Page `index` of one of the decoded heads, if the list is long enough.
struct ListPage {
  const CommvqLists& lists;
  int32_t head;
  int32_t index;
  DevicePage record{};
  bool exists;

  __device__ ListPage(const CommvqLists& lists_, int32_t which, int32_t index_)
      : lists(lists_), head(lists_.first_head + which), index(index_), exists(index_ < pages_of(lists_, head)) {
    if (exists) record = record_of(head);
  }

  __device__ bool has_codes() const { return exists && record.format() == lists.format; }

  /// Record of another head's page of the same tokens.
  __device__ DevicePage record_of(int32_t of_head) const {
    const uint4 words =
        __ldg(reinterpret_cast<const uint4*>(lists.view.pages + int64_t{of_head} * lists.view.capacity + index));
    return *reinterpret_cast<const DevicePage*>(&words);
  }
  /// Norm or scale of a slot; `at`: offset of the side in a page.
  __device__ float shared_number(const SharedNumbers& numbers, int32_t at, int32_t slot) const {
    const auto* side = reinterpret_cast<const std::byte*>(record_of(holder_of(numbers, head, slot)).data) + at;
    return __half2float(*reinterpret_cast<const __half*>(side + place_of(numbers, slot)));
  }
};

/// One page per thread.
__global__ void __launch_bounds__(kThreads) replace_records_kernel(CommvqLists lists) {
  const auto which = static_cast<int32_t>(blockIdx.y);
  const auto index = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const ListPage page(lists, which, index);
  if (!page.exists) return;
  DevicePage record = page.record;
  if (page.has_codes()) {
    record.data = reinterpret_cast<uint64_t>(stand_in(lists, which, index));
    record.state = DevicePage::state_of(lists.stand_in, record.count(), record.has_positions());
  }
  lists.records[int64_t{which} * lists.view.capacity + index] = record;
}

/// Copies sides without CommVQ codes, one page per block.
__global__ void __launch_bounds__(kThreads) copy_side_kernel(CommvqLists lists) {
  const auto which = static_cast<int32_t>(blockIdx.y);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const ListPage page(lists, which, index);
  if (!page.has_codes()) return;
  copy_side(lists.copied, page.record.data, reinterpret_cast<uint64_t>(stand_in(lists, which, index)));
}

// Keys: a block holds the codebooks of some pairs of a head in shared memory and decodes these pairs of some pages, one
// page per warp. Lanes are pairs of one or several slots.

constexpr int32_t kKeyThreads = 512;
constexpr int32_t kKeyWarps = kKeyThreads / kWarpLanes;
constexpr int32_t kKeyPages = 4 * kKeyWarps;  // per block

/// Division of a head's pairs among blocks.
struct PairShare {
  int32_t pairs;   // per block, a power of two
  int32_t groups;  // maximum groups of pairs with common indices that these pairs touch

  static PairShare of(const KeyTables& keys, int32_t shared_limit) {
    PairShare share{kWarpLanes, 0};
    for (;; share.pairs /= 2) {
      share.groups = std::min((share.pairs + keys.group - 2) / keys.group + 1, keys.groups);
      if (share.pairs == 1 || share.shared_bytes(keys) <= shared_limit) return share;
    }
  }
  KVQ_HOST_DEVICE int32_t blocks(int32_t all_pairs) const { return (all_pairs + pairs - 1) / pairs; }
  KVQ_HOST_DEVICE int32_t table_bytes(const KeyTables& keys) const { return 4 * keys.stages * keys.codes * pairs; }
  KVQ_HOST_DEVICE int32_t rotation_bytes() const { return static_cast<int32_t>(sizeof(float2)) * kSlots * pairs; }
  /// Bytes for norms and indices of a warp's page.
  KVQ_HOST_DEVICE int32_t page_bytes(const KeyTables& keys) const { return 4 * kSlots * (1 + groups * keys.stages); }
  KVQ_HOST_DEVICE int32_t shared_bytes(const KeyTables& keys) const {
    return table_bytes(keys) + rotation_bytes() + kKeyWarps * page_bytes(keys);
  }
};

class KeyDecoder {
 public:
  __device__ KeyDecoder(const CommvqLists& lists, const PairShare& share, std::byte* memory)
      : lists_(lists),
        tables_(lists.tables),
        keys_(tables_.keys),
        share_(share),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarpLanes),
        which_(static_cast<int32_t>(blockIdx.y) / share.blocks(tables_.pairs())),
        head_(lists.first_head + which_),
        first_pair_(static_cast<int32_t>(blockIdx.y) % share.blocks(tables_.pairs()) * share.pairs),
        column_(lane_ % share.pairs),
        // Lanes past the last pair repeat it.
        pair_(min(first_pair_ + column_, tables_.pairs() - 1)),
        first_stage_(first_pair_ / keys_.group * keys_.stages),
        stages_(min(share.groups * keys_.stages, keys_.head_stages() - first_stage_)),
        table_(reinterpret_cast<uint32_t*>(memory)),
        slot_rotations_(reinterpret_cast<float2*>(memory + share.table_bytes(keys_))),
        norms_(reinterpret_cast<float*>(memory + share.table_bytes(keys_) + share.rotation_bytes() +
                                        warp_ * share.page_bytes(keys_))),
        places_(reinterpret_cast<uint32_t*>(norms_ + kSlots)) {}

  __device__ void run() {
    const int32_t first = static_cast<int32_t>(blockIdx.x) * kKeyPages;
    const int32_t end = min(first + kKeyPages, pages_of(lists_, head_));
    if (first >= end) return;
    load_table();
    const int32_t slots = kKeyThreads / share_.pairs;
    for (auto slot = static_cast<int32_t>(threadIdx.x) / share_.pairs; slot < kSlots; slot += slots) {
      slot_rotations_[slot * share_.pairs + column_] = rotation_of(tables_, slot, pair_);
    }
    __syncthreads();
    for (int32_t index = first + warp_; index < end; index += kKeyWarps) {
      const ListPage page(lists_, which_, index);
      if (page.has_codes()) decode(page);
    }
  }

 private:
  /// Loads rows [stages][codes] of the block's pairs.
  __device__ void load_table() const {
    const uint32_t* from = keys_.rows +
                           (int64_t{head_} * keys_.groups + group()) * keys_.stages * keys_.codes * keys_.group +
                           pair_ % keys_.group;
    const int32_t rows = keys_.stages * keys_.codes;
    const int32_t together = kKeyThreads / share_.pairs;
#pragma unroll 8
    for (auto row = static_cast<int32_t>(threadIdx.x) / share_.pairs; row < rows; row += together) {
      table_[row * share_.pairs + column_] = __ldg(from + int64_t{row} * keys_.group);
    }
  }
  __device__ __forceinline__ int32_t group() const { return pair_ / keys_.group; }

  /// One slot per lane.
  __device__ __forceinline__ void unpack(const ListPage& page) const {
    const auto* side = reinterpret_cast<const std::byte*>(page.record.data);
    const auto row_bytes = static_cast<uint32_t>(4 * share_.pairs);
    __syncwarp();
    norms_[lane_] = page.shared_number(keys_.numbers, 0, lane_);
#pragma unroll 4
    for (int32_t stage = 0; stage < stages_; ++stage) {
      const int32_t field = (first_stage_ + stage) * 2 * kSlots + lane_;
      const auto a = static_cast<uint32_t>(field_at(side, field, keys_.index_bits));
      const auto b = static_cast<uint32_t>(field_at(side, field + kSlots, keys_.index_bits));
      places_[stage * kSlots + lane_] = (a | b << 16U) * row_bytes;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void decode(const ListPage& page) const {
    unpack(page);
    const DevicePage& record = page.record;
    std::byte* to = stand_in(lists_, which_, page.index);
    // Pages with gaps rotate slot by slot instead.
    const bool regular = !record.has_positions();
    const float2 page_rotation = rotation_of(tables_, regular ? record.first_position : 0, pair_);
    const uint32_t* own = places_ + (group() * keys_.stages - first_stage_) * kSlots;
#pragma unroll 1
    for (int32_t slot = lane_ / share_.pairs; slot < kSlots; slot += kWarpLanes / share_.pairs) {
      float2 sum = sum_of_stages(own + slot);
      if (slot >= record.count()) sum = {0.0F, 0.0F};
      const float2 of_slot =
          regular ? slot_rotations_[slot * share_.pairs + column_] : rotation_of(tables_, position(page, slot), pair_);
      const float2 key = product(sum, product(page_rotation, of_slot));
      const float norm = norms_[slot];
      put(to, slot, tables_.first_channel(pair_), norm * key.x);
      put(to, slot, tables_.second_channel(pair_), norm * key.y);
    }
  }

  __device__ __forceinline__ float2 sum_of_stages(const uint32_t* places) const {
    float2 sum = {0.0F, 0.0F};
    uint32_t rows = shared_address(table_ + column_);
    const auto stage_bytes = static_cast<uint32_t>(4 * keys_.codes * share_.pairs);
#pragma unroll 4
    for (int32_t stage = 0; stage < keys_.stages; ++stage, rows += stage_bytes) {
      const uint32_t both = places[stage * kSlots];
      const float2 a = code(rows + (both & 0xFFFFU));
      const float2 b = code(rows + (both >> 16U));
      sum.x += a.x - b.y;
      sum.y += a.y + b.x;
    }
    return sum;
  }
  static __device__ __forceinline__ float2 code(uint32_t address) {
    const auto two = load_shared<uint32_t>(address);
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
  }
  __device__ __forceinline__ int32_t position(const ListPage& page, int32_t slot) const {
    const int64_t row = int64_t{head_} * lists_.view.capacity + page.index;
    return slot < page.record.count() ? lists_.view.positions[row * kSlots + slot] : 0;
  }
  __device__ __forceinline__ void put(std::byte* to, int32_t slot, int32_t channel, float x) const {
    *reinterpret_cast<__half*>(to + float16_place(Side::kKeys, tables_.head_dim, slot, channel)) =
        __float2half_rn(fmaxf(fminf(x, kMaxFloat16), -kMaxFloat16));
  }

  const CommvqLists& lists_;
  const CodebookTables& tables_;
  const KeyTables& keys_;
  const PairShare& share_;
  int32_t warp_;
  int32_t lane_;
  int32_t which_;
  int32_t head_;
  int32_t first_pair_;
  int32_t column_;
  int32_t pair_;
  int32_t first_stage_;  // among the block's groups
  int32_t stages_;
  uint32_t* table_;         // [stages][codes][pairs]
  float2* slot_rotations_;  // [slots][pairs]
  float* norms_;            // [slots], the warp's page
  uint32_t* places_;        // [groups][stages][slots]: byte offsets of a stage's two rows in the table, a | b << 16
};

/// key = norm · e^{i·position·θ} · Σ over stages of (z[a] + i·z[b])
__global__ void __launch_bounds__(kKeyThreads)
    decode_keys_kernel(const __grid_constant__ CommvqLists lists, const __grid_constant__ PairShare share) {
  extern __shared__ __align__(16) std::byte memory[];
  KeyDecoder(lists, share, memory).run();
}

// Values: codes of 128 slots times rows of C on tensor cores. Masked bits are subnormal FP16 values (fragments.cuh):
// 2^-24 for the lowest bit of a byte, 2^-16 for that of the next byte.

constexpr int32_t kPages = kThreads / kWarpLanes;  // per block, one per warp
constexpr int32_t kChannels = 128;                 // per block
constexpr int32_t kBits = 64;                      // rows of C per step
constexpr int32_t kBitSteps = kBits / 16;          // products per step
constexpr float kByteScale = 65536.0F;             // 2^16

struct ValueShared {
  __half rows[2][kBits][kChannels + 8];
};

/// Starts copies of rows of C from bit `bit` of part `part` on into shared memory; rows and channels past the end are
/// zeros.
__device__ void start_rows(const ValueTables& values, int64_t vector, int32_t part, int32_t bit, int32_t channel,
                           int32_t channels, __half (&to)[kBits][kChannels + 8]) {
  const uint16_t* codes = values.codes + (vector * values.bits + part * values.lanes) * values.width;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kBits * kChannels / 8; i += kThreads) {
    const int32_t row = i / (kChannels / 8);
    const int32_t chunk = i % (kChannels / 8) * 8;
    __half* place = &to[row][chunk];
    if (bit + row < values.lanes && chunk < channels) {
      copy_chunk(shared_address(place), codes + int64_t{bit + row} * values.width + channel + chunk);
    } else {
      *reinterpret_cast<uint4*>(place) = {0, 0, 0, 0};
    }
  }
}

/// Code words that a lane multiplies in a step: those of bits 2t and 2t + 1 of each eight.
struct StepWords {
  uint2 of[2 * kBitSteps];

  __device__ __forceinline__ void load(const uint32_t* words, int32_t bit, int32_t lanes, int32_t t) {
#pragma unroll
    for (int32_t i = 0; i < 2 * kBitSteps; ++i) {
      const int32_t n = bit + 8 * i + 2 * t;
      of[i] = words != nullptr && n < lanes ? __ldg(reinterpret_cast<const uint2*>(words + n)) : uint2{0, 0};
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1) decode_values_kernel(CommvqLists lists) {
  __shared__ __align__(16) ValueShared shared;
  const CodebookTables& tables = lists.tables;
  const ValueTables& values = tables.values;
  const int32_t blocks_of_head = (tables.head_dim + kChannels - 1) / kChannels;
  const int32_t which = static_cast<int32_t>(blockIdx.y) / blocks_of_head;
  const int32_t channel =
      static_cast<int32_t>(blockIdx.y) % blocks_of_head * kChannels;  // block's first, within the head
  const int32_t head = lists.first_head + which;
  const int32_t first_page = static_cast<int32_t>(blockIdx.x) * kPages;
  if (first_page >= pages_of(lists, head)) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  const int32_t index = first_page + static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const ListPage page(lists, which, index);
  const int64_t vector = values.of_layer() ? 0 : head;
  const int32_t of_vector = values.of_layer() ? head * tables.head_dim : 0;
  const int32_t channels = min(kChannels, tables.head_dim - channel);
  const int32_t steps = (values.lanes + kBits - 1) / kBits;
  const int32_t all_steps = values.parts * steps;
  // Code addresses are loaded one step before the codes.
  const auto find_codes = [&](int32_t step) {
    const uint32_t* codes = nullptr;
    if (page.has_codes() && step < all_steps) {
      const DevicePage record = page.record_of(values.of_layer() ? step / steps : head);
      codes = reinterpret_cast<const uint32_t*>(record.data + static_cast<uint64_t>(lists.commvq_values));
    }
    return codes;
  };

  float sums[2][kChannels / 8][4] = {};
  StepWords next;
  next.load(find_codes(0), 0, values.lanes, t);
  const uint32_t* codes = find_codes(1);
  start_rows(values, vector, 0, 0, of_vector + channel, channels, shared.rows[0]);
#pragma unroll 1
  for (int32_t step = 0; step < all_steps; ++step) {
    wait_chunks();
    __syncthreads();
    const int32_t after = step + 1;
    if (after < all_steps) {
      start_rows(values, vector, after / steps, after % steps * kBits, of_vector + channel, channels,
                 shared.rows[after % 2]);
    }
    const StepWords words = next;
    next.load(codes, after % steps * kBits, values.lanes, t);
    codes = find_codes(after + 1);
    if (!page.has_codes()) continue;
#pragma unroll
    for (int32_t k = 0; k < kBitSteps; ++k) {
      // Rows g and g + 8 of the first tile are slots 4g and 4g + 2; the second tile holds the slots after these.
      uint32_t a[2][4];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint2 own = words.of[2 * k + i];
        const uint32_t low = low_halves(own.x, own.y) >> g;
        const uint32_t high = high_halves(own.x, own.y) >> g;
        a[0][2 * i] = low & 0x00010001U;
        a[0][2 * i + 1] = high & 0x00010001U;
        a[1][2 * i] = low & 0x01000100U;
        a[1][2 * i + 1] = high & 0x01000100U;
      }
#pragma unroll
      for (int32_t n = 0; n < kChannels / 16; ++n) {
        uint32_t b[4];
        load_transposed(shared_address(&shared.rows[step % 2][16 * k + lane % 16][16 * n + lane / 16 * 8]), b);
#pragma unroll
        for (int32_t tile = 0; tile < 2; ++tile) {
          mma(sums[tile][2 * n], a[tile], b[0], b[1]);
          mma(sums[tile][2 * n + 1], a[tile], b[2], b[3]);
        }
      }
    }
  }
  if (!page.has_codes()) return;
  std::byte* to = stand_in(lists, which, index) + lists.stand_in_values;
  float scales[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) scales[i] = page.shared_number(values.numbers, lists.commvq_values, 4 * g + i);
  const float* offset = values.offset + vector * values.width + of_vector;
  const float* channel_scale = values.channel_scale + vector * values.width + of_vector;
#pragma unroll
  for (int32_t n = 0; n < kChannels / 8; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t c = channel + 8 * n + 2 * t + i;
      if (c >= tables.head_dim) continue;
      const auto value = [&](float sum, float scale, int32_t slot) {
        const float x = channel_scale[c] * scale * (offset[c] + sum);
        return slot < page.record.count() ? fmaxf(fminf(x, kMaxFloat16), -kMaxFloat16) : 0.0F;
      };
      const float first = value(sums[0][n][i] * kSubnormalScale, scales[0], 4 * g);
      const float second = value(sums[1][n][i] * kByteScale, scales[1], 4 * g + 1);
      const float third = value(sums[0][n][2 + i] * kSubnormalScale, scales[2], 4 * g + 2);
      const float fourth = value(sums[1][n][2 + i] * kByteScale, scales[3], 4 * g + 3);
      *reinterpret_cast<uint32_t*>(to + float16_place(Side::kValues, tables.head_dim, 4 * g, c)) = pack(first, second);
      *reinterpret_cast<uint32_t*>(to + float16_place(Side::kValues, tables.head_dim, 4 * g + 2, c)) =
          pack(third, fourth);
    }
  }
}

}  // namespace

cudaError_t prepare_decode_lists(int32_t shared_limit) {
  return cudaFuncSetAttribute(decode_keys_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
}

cudaError_t decode_lists(const CommvqLists& lists, cudaStream_t stream) {
  const auto heads = static_cast<uint32_t>(lists.heads);
  const auto longest = static_cast<uint32_t>(lists.longest);
  const CodebookTables& tables = lists.tables;
  replace_records_kernel<<<dim3((longest + kThreads - 1) / kThreads, heads), kThreads, 0, stream>>>(lists);
  if (lists.codes_keys != 0) {
    const PairShare share = PairShare::of(tables.keys, lists.shared_limit);
    const auto of_head = static_cast<uint32_t>(share.blocks(tables.pairs()));
    const dim3 grid((longest + kKeyPages - 1) / kKeyPages, heads * of_head);
    const auto bytes = static_cast<size_t>(share.shared_bytes(tables.keys));
    decode_keys_kernel<<<grid, kKeyThreads, bytes, stream>>>(lists, share);
  }
  if (lists.codes_values != 0) {
    const auto of_head = static_cast<uint32_t>((tables.head_dim + kChannels - 1) / kChannels);
    decode_values_kernel<<<dim3((longest + kPages - 1) / kPages, heads * of_head), kThreads, 0, stream>>>(lists);
  }
  if (lists.copied.bytes > 0) copy_side_kernel<<<dim3(longest, heads), kThreads, 0, stream>>>(lists);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
