// Pages of CommVQ become pages with halves, which every kernel of attention reads.
#include "kernels/codebook.cuh"
#include "kernels/copies.cuh"
#include "kernels/fragments.cuh"
#include "kernels/warp.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;

__device__ int32_t pages_of(const CodedLists& lists, int32_t head) { return lists.view.heads[head].pages; }

__device__ std::byte* stand_in(const CodedLists& lists, int32_t which, int32_t index) {
  return lists.pages + (int64_t{which} * lists.longest + index) * lists.page_bytes;
}

/// A page of one of the heads that are decoded, if the list goes so far.
struct ListPage {
  const CodedLists& lists;
  int32_t head;
  int32_t index;
  DevicePage record{};
  bool exists;

  __device__ ListPage(const CodedLists& lists_, int32_t which, int32_t index_)
      : lists(lists_), head(lists_.first_head + which), index(index_), exists(index_ < pages_of(lists_, head)) {
    if (exists) record = record_of(head);
  }

  __device__ bool has_codes() const { return exists && record.format == lists.coded; }

  /// Of the page that another head has of the same tokens.
  __device__ DevicePage record_of(int32_t of_head) const {
    const uint4 words =
        __ldg(reinterpret_cast<const uint4*>(lists.view.pages + int64_t{of_head} * lists.view.capacity + index));
    return *reinterpret_cast<const DevicePage*>(&words);
  }
  /// The number that a slot shares with other heads, of a side that begins `at` bytes from a page's beginning.
  __device__ float shared_number(const SharedNumbers& numbers, int32_t at, int32_t slot) const {
    const auto* side = reinterpret_cast<const std::byte*>(record_of(holder_of(numbers, head, slot)).data) + at;
    return __half2float(*reinterpret_cast<const __half*>(side + place_of(numbers, slot)));
  }
};

/// A thread a page.
__global__ void __launch_bounds__(kThreads) replace_records_kernel(CodedLists lists) {
  const auto which = static_cast<int32_t>(blockIdx.y);
  const auto index = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const ListPage page(lists, which, index);
  if (!page.exists) return;
  DevicePage record = page.record;
  if (page.has_codes()) {
    record.data = reinterpret_cast<uint64_t>(stand_in(lists, which, index));
    record.format = static_cast<uint16_t>(lists.stand_in);
  }
  lists.records[int64_t{which} * lists.view.capacity + index] = record;
}

/// A side that has no codes; a block a page.
__global__ void __launch_bounds__(kThreads) copy_side_kernel(CodedLists lists) {
  const auto which = static_cast<int32_t>(blockIdx.y);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const ListPage page(lists, which, index);
  if (!page.has_codes()) return;
  copy_side(lists.copied, page.record.data, reinterpret_cast<uint64_t>(stand_in(lists, which, index)));
}

/// norm · e^{i·position·θ} · Σ (z[a] + i·z[b]) of the stages; a block a page, a lane some pairs.
__global__ void __launch_bounds__(kThreads) decode_keys_kernel(CodedLists lists) {
  const auto which = static_cast<int32_t>(blockIdx.y);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const ListPage page(lists, which, index);
  if (!page.has_codes()) return;
  const DevicePage& record = page.record;
  const CodebookTables& tables = lists.tables;
  const KeyTables& keys = tables.keys;
  const auto* side = reinterpret_cast<const std::byte*>(record.data);
  std::byte* to = stand_in(lists, which, index);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  for (int32_t slot = static_cast<int32_t>(threadIdx.x) / kWarpLanes; slot < kSlots; slot += kThreads / kWarpLanes) {
    const float norm = page.shared_number(keys.numbers, 0, slot);
    int32_t position = record.first_position + slot;
    if (record.has_positions != 0) {
      position = lists.view.positions[(int64_t{page.head} * lists.view.capacity + index) * kSlots + slot];
    }
    for (int32_t pair = lane; pair < tables.pairs(); pair += kWarpLanes) {
      const int32_t group = pair / keys.group;
      float real = 0.0F;
      float imaginary = 0.0F;
      int64_t row = (int64_t{page.head} * keys.groups + group) * keys.stages * keys.codes;
      for (int32_t stage = 0; stage < keys.stages; ++stage, row += keys.codes) {
        const int32_t field = (group * keys.stages + stage) * 2 * kSlots + slot;
        const int32_t a = field_at(side, field, keys.index_bits);
        const int32_t b = field_at(side, field + kSlots, keys.index_bits);
        const float2 of_a = code_at(keys.rows, (row + a) * keys.group + pair % keys.group);
        const float2 of_b = code_at(keys.rows, (row + b) * keys.group + pair % keys.group);
        real += of_a.x - of_b.y;
        imaginary += of_a.y + of_b.x;
      }
      if (slot >= record.count) real = imaginary = 0.0F;
      const float2 turn = turn_of(tables, slot < record.count ? position : 0, pair);
      const auto put = [&](int32_t channel, float x) {
        *reinterpret_cast<uint16_t*>(to + float16_place(Side::kKeys, tables.head_dim, slot, channel)) =
            to_float16(fmaxf(fminf(norm * x, kMaxFloat16), -kMaxFloat16));
      };
      put(tables.first_channel(pair), real * turn.x - imaginary * turn.y);
      put(tables.second_channel(pair), real * turn.y + imaginary * turn.x);
    }
  }
}

// Values: codes of 128 slots by rows of C, on tensor cores. Bits under a mask are subnormal halves (fragments.cuh):
// those of the lowest bit of a byte, 2^-24, and of the next byte, 2^-16.

constexpr int32_t kPages = 4;      // a block's
constexpr int32_t kChannels = 64;  // a block's
constexpr int32_t kBits = 64;      // rows of C at a time
constexpr int32_t kWarpChannels = 32;
constexpr float kByteScale = 65536.0F;  // 2^16

struct ValueShared {
  __half rows[2][kBits][kChannels + 8];
};

/// Rows of C, from `bit` of part `part` on, become shared memory; zeros beyond either end.
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

__global__ void __launch_bounds__(kThreads) decode_values_kernel(CodedLists lists) {
  __shared__ __align__(16) ValueShared shared;
  const CodebookTables& tables = lists.tables;
  const ValueTables& values = tables.values;
  const int32_t blocks_of_head = (tables.head_dim + kChannels - 1) / kChannels;
  const int32_t which = static_cast<int32_t>(blockIdx.y) / blocks_of_head;
  const int32_t channel =
      static_cast<int32_t>(blockIdx.y) % blocks_of_head * kChannels;  // of the head, the block's first
  const int32_t head = lists.first_head + which;
  const int32_t first_page = static_cast<int32_t>(blockIdx.x) * kPages;
  if (first_page >= pages_of(lists, head)) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  const int32_t index = first_page + warp % kPages;
  const int32_t warp_channel = warp / kPages * kWarpChannels;
  const ListPage page(lists, which, index);
  const int64_t vector = values.of_layer() ? 0 : head;
  const int32_t of_vector = values.of_layer() ? head * tables.head_dim : 0;
  const int32_t channels = min(kChannels, tables.head_dim - channel);
  const int32_t steps = (values.lanes + kBits - 1) / kBits;
  const int32_t all_steps = values.parts * steps;

  float sums[2][kWarpChannels / 8][4] = {};
  start_rows(values, vector, 0, 0, of_vector + channel, channels, shared.rows[0]);
#pragma unroll 1
  for (int32_t step = 0; step < all_steps; ++step) {
    wait_chunks();
    __syncthreads();
    const int32_t next = step + 1;
    if (next < all_steps) {
      start_rows(values, vector, next / steps, next % steps * kBits, of_vector + channel, channels,
                 shared.rows[next % 2]);
    }
    if (!page.has_codes()) continue;
    const int32_t bit = step % steps * kBits;
    const int32_t holder = values.of_layer() ? step / steps : head;
    const DevicePage record = page.record_of(holder);
    const auto* words = reinterpret_cast<const uint32_t*>(record.data + static_cast<uint64_t>(lists.coded_values));
#pragma unroll
    for (int32_t k = 0; k < kBits / 16; ++k) {
      uint32_t own[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t n = bit + 16 * k + 2 * t + i % 2 + 8 * (i / 2);
        own[i] = n < values.lanes ? __ldg(words + n) >> g : 0;
      }
      // Rows g and g + 8 of the first tile are slots 4g and 4g + 2, of the second one the slots after these.
      uint32_t a[2][4];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint32_t low = low_halves(own[2 * i], own[2 * i + 1]);
        const uint32_t high = high_halves(own[2 * i], own[2 * i + 1]);
        a[0][2 * i] = low & 0x00010001U;
        a[0][2 * i + 1] = high & 0x00010001U;
        a[1][2 * i] = low & 0x01000100U;
        a[1][2 * i + 1] = high & 0x01000100U;
      }
#pragma unroll
      for (int32_t n = 0; n < kWarpChannels / 16; ++n) {
        uint32_t b[4];
        load_transposed(
            shared_address(&shared.rows[step % 2][16 * k + lane % 16][warp_channel + 16 * n + lane / 16 * 8]), b);
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
  for (int32_t i = 0; i < 4; ++i) scales[i] = page.shared_number(values.numbers, lists.coded_values, 4 * g + i);
  const float* offset = values.offset + vector * values.width + of_vector;
  const float* channel_scale = values.channel_scale + vector * values.width + of_vector;
#pragma unroll
  for (int32_t n = 0; n < kWarpChannels / 8; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t c = channel + warp_channel + 8 * n + 2 * t + i;
      if (c >= tables.head_dim) continue;
      const auto value = [&](float sum, float scale, int32_t slot) {
        const float x = channel_scale[c] * scale * (offset[c] + sum);
        return slot < page.record.count ? fmaxf(fminf(x, kMaxFloat16), -kMaxFloat16) : 0.0F;
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

cudaError_t decode_lists(const CodedLists& lists, cudaStream_t stream) {
  const auto heads = static_cast<uint32_t>(lists.heads);
  const auto longest = static_cast<uint32_t>(lists.longest);
  const CodebookTables& tables = lists.tables;
  replace_records_kernel<<<dim3((longest + kThreads - 1) / kThreads, heads), kThreads, 0, stream>>>(lists);
  if (lists.codes_keys != 0) decode_keys_kernel<<<dim3(longest, heads), kThreads, 0, stream>>>(lists);
  if (lists.codes_values != 0) {
    const auto of_head = static_cast<uint32_t>((tables.head_dim + kChannels - 1) / kChannels);
    decode_values_kernel<<<dim3((longest + kPages - 1) / kPages, heads * of_head), kThreads, 0, stream>>>(lists);
  }
  if (lists.copied.bytes > 0) copy_side_kernel<<<dim3(longest, heads), kThreads, 0, stream>>>(lists);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
