// Encodes keys to codebook indices. Follows the host's KeyEncoder operation by operation, so that pages are the same
// bytes.
#include "kernels/commvq/codebook.cuh"
#include "kernels/device/warp.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / kWarpLanes;
/// Search rows of a block: one sum of centres for each of 16 tokens, or several for fewer tokens.
constexpr int32_t kRows = 16;
constexpr int32_t kCodeLanes = 64;  // codes whose products a block computes at a time
constexpr int32_t kThreadRows = kRows / (kThreads / kCodeLanes);

/// Upper limit of a gain in units of the norm (KeyFit::gain).
constexpr double kMostNorms = 2.0;

/// Loads keys as floats and undoes their rotation.
__global__ void __launch_bounds__(kThreads) read_keys_kernel(CommvqPages all, float* numbers) {
  const CodebookTables& tables = all.tables;
  const CommvqPage page = all.pages[blockIdx.x];
  const int32_t group = static_cast<int32_t>(blockIdx.x) / all.members;
  const int32_t member = static_cast<int32_t>(blockIdx.x) % all.members;
  const auto* halves = reinterpret_cast<const std::byte*>(page.source);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kSlots * tables.pairs(); i += kThreads) {
    const int32_t slot = i / tables.pairs();
    const int32_t pair = i % tables.pairs();
    const auto load = [&](int32_t channel) {
      const int32_t place = float16_place(Side::kKeys, tables.head_dim, slot, channel);
      return __half2float(*reinterpret_cast<const __half*>(halves + place));
    };
    float x = load(tables.first_channel(pair));
    float y = load(tables.second_channel(pair));
    if (slot < page.used) {
      const int32_t position = page.positions < 0 ? page.first_position + slot : all.positions[page.positions + slot];
      const float2 rotation = rotation_of(tables, position, pair);
      const float rotated = x * rotation.x + y * rotation.y;
      y = y * rotation.x - x * rotation.y;
      x = rotated;
    }
    float* row = numbers + (int64_t{group * kSlots + slot} * all.members + member) * tables.head_dim;
    row[tables.first_channel(pair)] = x;
    row[tables.second_channel(pair)] = y;
  }
}

/// Computes the divisors of keys. One thread per norm: a serial sum in double, as on the host.
__global__ void __launch_bounds__(kThreads) norms_kernel(CommvqPages all, const float* numbers, float* norms) {
  const bool of_layer = all.tables.keys.numbers.of_layer != 0;
  const int32_t heads = of_layer ? 1 : all.members;
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);  // [groups][heads][32]
  if (i >= all.groups * heads * kSlots) return;
  const int32_t slot = i % kSlots;
  const int32_t head = i / kSlots % heads;
  const int32_t group = i / kSlots / heads;
  const int32_t channels = of_layer ? all.members * all.tables.head_dim : all.tables.head_dim;
  const float* row = numbers + (int64_t{group * kSlots + slot} * all.members + head) * all.tables.head_dim;
  double sum = 0.0;
#pragma unroll 8
  for (int32_t c = 0; c < channels; ++c) {
    const double x{row[c]};
    sum += x * x;
  }
  norms[i] = from_float16(to_float16(fminf(static_cast<float>(sqrt(sum)), kMaxFloat16)));
}

struct Step {
  uint8_t parent;
  uint8_t a;
  uint8_t b;
  uint8_t unused;
};

/// Shared memory of a block.
struct SearchMemory {
  float* vectors;   // [kRows]{re[group], im[group]}: residuals of the keys
  float* next;      // residuals after the stage
  float* products;  // [kRows]{u[codes], v[codes]}, twice the products
  float* energies;  // [kRows] of residuals, relative to the token's first row
  float* next_energies;
  Step* steps;  // [stages][kRows]

  KVQ_HOST_DEVICE SearchMemory(std::byte* memory, const KeyTables& keys) {
    auto* floats = reinterpret_cast<float*>(memory);
    vectors = floats;
    next = vectors + kRows * 2 * keys.group;
    products = next + kRows * 2 * keys.group;
    energies = products + kRows * 2 * keys.codes;
    next_energies = energies + kRows;
    steps = reinterpret_cast<Step*>(next_energies + kRows);
  }
  static int32_t bytes(const KeyTables& keys) {
    return 4 * (kRows * (4 * keys.group + 2 * keys.codes + 2 + keys.stages));
  }
};

struct Search {
  const CommvqPages& all;
  const KeyTables& keys;
  SearchMemory memory;
  int64_t part;  // among all heads' groups
  int32_t beam;
  int32_t tokens;

  __device__ const uint16_t* planes(int32_t stage) const {
    return keys.planes + (part * keys.stages + stage) * keys.group * 2 * keys.codes;
  }
  __device__ const uint32_t* rows(int32_t stage) const {
    return keys.rows + (part * keys.stages + stage) * keys.codes * keys.group;
  }
  __device__ const float* norms(int32_t stage) const {
    return keys.norms + (part * keys.stages + stage) * keys.codes * keys.codes;
  }

  /// Lanes are codes: a thread sums the products of one code with some rows, pair by pair.
  __device__ void multiply(int32_t stage, int32_t live) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t first = thread / kCodeLanes * kThreadRows;
    if (first >= tokens * live) return;
    for (int32_t code = thread % kCodeLanes; code < keys.codes; code += kCodeLanes) {
      float real[kThreadRows] = {};
      float imaginary[kThreadRows] = {};
      const uint16_t* plane = planes(stage) + code;
#pragma unroll 4
      for (int32_t j = 0; j < keys.group; ++j, plane += 2 * keys.codes) {
        const float re = 2.0F * half_at(plane, 0);
        const float im = 2.0F * half_at(plane, keys.codes);
#pragma unroll
        for (int32_t r = 0; r < kThreadRows; ++r) {
          const float* row = memory.vectors + (first + r) * 2 * keys.group + j;
          const float x = row[0];
          const float y = row[keys.group];
          real[r] = (real[r] + re * x) + im * y;
          imaginary[r] = (imaginary[r] + re * y) - im * x;
        }
      }
#pragma unroll
      for (int32_t r = 0; r < kThreadRows; ++r) {
        float* row = memory.products + (first + r) * 2 * keys.codes + code;
        row[0] = real[r];
        row[keys.codes] = imaginary[r];
      }
    }
  }

  /// Returns the cost of a row's nearest centre and a · codes + b; ties go to the lowest.
  __device__ Placed nearest(int32_t stage, int32_t row, int32_t lane) const {
    const float* u = memory.products + row * 2 * keys.codes;
    const float* v = u + keys.codes;
    const float* table = norms(stage);
    Placed best{INFINITY, 0};
    for (int32_t a = lane; a < keys.codes; a += kWarpLanes) {
      float least = INFINITY;
#pragma unroll 8
      for (int32_t b = 0; b < keys.codes; ++b) least = fminf(least, __ldg(table + b * keys.codes + a) - v[b]);
      const float cost = least - u[a];
      if (cost < best.number) best = {cost, a};
    }
    const int32_t a = first_of_lanes(best).place;
    best = {INFINITY, 0};
    for (int32_t b = lane; b < keys.codes; b += kWarpLanes) {
      const float cost = (__ldg(table + b * keys.codes + a) - v[b]) - u[a];
      if (cost < best.number) best = {cost, b};
    }
    best = first_of_lanes(best);
    return {best.number, a * keys.codes + best.place};
  }

  /// Returns the first continuation of a token's rows that comes after `after`; places are ordered by (row, a, b).
  __device__ Placed next_best(int32_t stage, int32_t first, int32_t live, const Placed& after, int32_t lane) const {
    const float* table = norms(stage);
    Placed best{INFINITY, 0};
    for (int32_t row = 0; row < live; ++row) {
      const float* u = memory.products + (first + row) * 2 * keys.codes;
      const float* v = u + keys.codes;
      const float energy = memory.energies[first + row];
      for (int32_t i = lane; i < keys.codes * keys.codes; i += kWarpLanes) {
        const int32_t a = i % keys.codes;
        const int32_t b = i / keys.codes;
        const Placed each{energy + ((__ldg(table + i) - v[b]) - u[a]), (row * keys.codes + a) * keys.codes + b};
        if (comes_before(each, best) && comes_before(after, each)) best = each;
      }
    }
    return first_of_lanes(best);
  }

  __device__ void subtract(int32_t stage, int32_t row, int32_t a, int32_t b, int32_t to, int32_t lane) const {
    const float* source = memory.vectors + row * 2 * keys.group;
    float* target = memory.next + to * 2 * keys.group;
    for (int32_t j = lane; j < keys.group; j += kWarpLanes) {
      const float2 of_a = code_at(rows(stage), a * keys.group + j);
      const float2 of_b = code_at(rows(stage), b * keys.group + j);
      target[j] = source[j] - (of_a.x - of_b.y);
      target[keys.group + j] = source[keys.group + j] - (of_a.y + of_b.x);
    }
  }

  /// One token per warp; returns how many rows each token has next (KeyEncoder::step).
  __device__ int32_t step(int32_t stage, int32_t live) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
    const int32_t centres = keys.codes * keys.codes;
    const int32_t next_live = min(beam, live * min(centres, beam));
    for (int32_t token = static_cast<int32_t>(threadIdx.x) / kWarpLanes; token < tokens; token += kWarps) {
      const int32_t first = token * live;
      Placed greedy = nearest(stage, first, lane);
      greedy.number += memory.energies[first];
      Placed taken{-INFINITY, -1};
      for (int32_t i = 0; i < next_live; ++i) {
        Placed next = greedy;
        if (i > 0) {
          taken = next_best(stage, first, live, taken, lane);
          if (taken.place == greedy.place) taken = next_best(stage, first, live, taken, lane);
          next = taken;
        }
        const int32_t row = next.place / centres;
        const int32_t a = next.place / keys.codes % keys.codes;
        const int32_t b = next.place % keys.codes;
        const int32_t to = token * next_live + i;
        subtract(stage, first + row, a, b, to, lane);
        if (lane != 0) continue;
        memory.next_energies[to] = next.number - greedy.number;
        memory.steps[stage * kRows + to] = {static_cast<uint8_t>(row), static_cast<uint8_t>(a), static_cast<uint8_t>(b),
                                            0};
      }
    }
    return next_live;
  }

  /// One token per thread; equals the end of KeyEncoder::encode.
  __device__ void finish(const KeyWork& work, int32_t page, int32_t of_head, int32_t first_slot, int32_t live,
                         const float* key_norms) const {
    const auto token = static_cast<int32_t>(threadIdx.x);
    if (token >= tokens) return;
    const int32_t slot = first_slot + token;
    const float norm = key_norms[slot];
    int32_t row = token * live;
    for (int32_t i = 1; i < live; ++i) {
      if (memory.energies[token * live + i] < memory.energies[row]) row = token * live + i;
    }
    Fit fit{0.0, 0.0};
    if (norm != 0.0F) {
      const CodebookTables& tables = all.tables;
      const int32_t group = page / all.members;
      const float* key =
          work.numbers + (int64_t{group * kSlots + slot} * all.members + page % all.members) * tables.head_dim;
      const float* rest = memory.vectors + row * 2 * keys.group;
      double left = 0.0;
      for (int32_t j = 0; j < keys.group; ++j) {
        const int32_t pair = of_head * keys.group + j;
        const double real{key[tables.first_channel(pair)]};
        const double imaginary{key[tables.second_channel(pair)]};
        fit.energy += real * real + imaginary * imaginary;
        left += real * double{rest[j]} + imaginary * double{rest[keys.group + j]};
      }
      fit.product = fit.energy / double{norm} - left;
    }
    work.fits[(int64_t{page} * keys.groups + of_head) * kSlots + slot] = fit;
    uint8_t* indices = work.indices + (int64_t{page} * keys.head_stages() + of_head * keys.stages) * 2 * kSlots + slot;
    for (int32_t stage = keys.stages - 1; stage >= 0; --stage) {
      const Step taken = memory.steps[stage * kRows + row];
      indices[stage * 2 * kSlots] = norm != 0.0F ? taken.a : 0;
      indices[stage * 2 * kSlots + kSlots] = norm != 0.0F ? taken.b : 0;
      row = token * live_before(stage) + taken.parent;
    }
  }

  /// Rows of a token before a stage.
  __device__ int32_t live_before(int32_t stage) const {
    int32_t live = 1;
    for (int32_t i = 0; i < stage && live < beam; ++i) live = min(beam, live * min(keys.codes * keys.codes, beam));
    return live;
  }
};

/// Searches the codes of some tokens, for one group of pairs of a page.
__global__ void __launch_bounds__(kThreads) search_kernel(CommvqPages all, KeyWork work, int32_t beam) {
  extern __shared__ __align__(16) std::byte memory[];
  const KeyTables& keys = all.tables.keys;
  const int32_t page = static_cast<int32_t>(blockIdx.x) / keys.groups;
  const int32_t of_head = static_cast<int32_t>(blockIdx.x) % keys.groups;
  const int32_t together = kRows / beam;
  const int32_t first_slot = static_cast<int32_t>(blockIdx.y) * together;
  Search search{all,
                keys,
                SearchMemory(memory, keys),
                int64_t{all.pages[page].head} * keys.groups + of_head,
                beam,
                min(together, kSlots - first_slot)};
  const int32_t group = page / all.members;
  const int32_t member = page % all.members;
  const float* norms = work.norms + (keys.numbers.of_layer != 0 ? group : group * all.members + member) * kSlots;
  const CodebookTables& tables = all.tables;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kRows * keys.group; i += kThreads) {
    const int32_t token = i / keys.group;
    const int32_t j = i % keys.group;
    const int32_t slot = first_slot + token;
    float real = 0.0F;
    float imaginary = 0.0F;
    if (token < search.tokens && norms[slot] != 0.0F) {
      const float* key = work.numbers + (int64_t{group * kSlots + slot} * all.members + member) * tables.head_dim;
      const int32_t pair = of_head * keys.group + j;
      real = key[tables.first_channel(pair)] / norms[slot];
      imaginary = key[tables.second_channel(pair)] / norms[slot];
    }
    search.memory.vectors[token * 2 * keys.group + j] = real;
    search.memory.vectors[token * 2 * keys.group + keys.group + j] = imaginary;
    // Unused rows are multiplied too.
    search.memory.next[token * 2 * keys.group + j] = search.memory.next[token * 2 * keys.group + keys.group + j] = 0.0F;
  }
  if (threadIdx.x < kRows) search.memory.energies[threadIdx.x] = 0.0F;
  __syncthreads();
  int32_t live = 1;
  for (int32_t stage = 0; stage < keys.stages; ++stage) {
    search.multiply(stage, live);
    __syncthreads();
    live = search.step(stage, live);
    __syncthreads();
    float* const vectors = search.memory.vectors;
    search.memory.vectors = search.memory.next;
    search.memory.next = vectors;
    float* const energies = search.memory.energies;
    search.memory.energies = search.memory.next_energies;
    search.memory.next_energies = energies;
  }
  search.finish(work, page, of_head, first_slot, live, norms);
}

/// Factor on the sum of centres (KeyFit::gain).
__device__ uint16_t gain_of(const Fit& fit) {
  const double norm = sqrt(fit.energy);
  const bool close = fit.product > 0.0 && fit.energy <= kMostNorms * norm * fit.product;
  return to_float16(static_cast<float>(fmin(close ? fit.energy / fit.product : norm, double{kMaxFloat16})));
}

/// Packs a page's indices and norms into bytes.
__global__ void __launch_bounds__(kThreads) pack_keys_kernel(CommvqPages all, KeyWork work) {
  const KeyTables& keys = all.tables.keys;
  const auto index = static_cast<int32_t>(blockIdx.x);
  const CommvqPage page = all.pages[index];
  auto* to = reinterpret_cast<uint8_t*>(page.target);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < keys.head_stages() * 8; i += kThreads) {
    const uint8_t* fields = work.indices + int64_t{index} * keys.head_stages() * 2 * kSlots + 8 * i;
    uint64_t word = 0;
#pragma unroll
    for (int32_t f = 0; f < 8; ++f) word |= static_cast<uint64_t>(fields[f]) << (f * keys.index_bits);
    for (int32_t byte = 0; byte < keys.index_bits; ++byte) {
      to[i * keys.index_bits + byte] = static_cast<uint8_t>(word >> (8 * byte));
    }
  }
  const SharedNumbers& numbers = keys.numbers;
  const int32_t first = numbers.of_layer != 0 ? page.head * numbers.share : 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); numbers.offset + 2 * i < all.target_values; i += kThreads) {
    uint16_t number = 0;  // zero past the last slot, too
    const int32_t slot = first + i;
    if (i < numbers.share && slot < kSlots) {
      const int32_t group = index / all.members;
      const int32_t begin = numbers.of_layer != 0 ? group * all.members : index;
      const int32_t end = numbers.of_layer != 0 ? begin + all.members : index + 1;
      Fit token{0.0, 0.0};
      for (int32_t other = begin; other < end; ++other) {
        Fit head{0.0, 0.0};
        for (int32_t part = 0; part < keys.groups; ++part) {
          const Fit each = work.fits[(int64_t{other} * keys.groups + part) * kSlots + slot];
          head.energy += each.energy;
          head.product += each.product;
        }
        token.energy += head.energy;
        token.product += head.product;
      }
      number = gain_of(token);
    }
    *reinterpret_cast<uint16_t*>(to + numbers.offset + 2 * i) = number;
  }
}

__global__ void __launch_bounds__(kThreads)
    centre_norms_kernel(const uint32_t* rows, int32_t codes, int32_t group, float* norms) {
  rows += int64_t{blockIdx.x} * codes * group;
  norms += int64_t{blockIdx.x} * codes * codes;
  for (auto i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x); i < codes * codes;
       i += static_cast<int32_t>(gridDim.y) * kThreads) {
    double sum = 0.0;
    for (int32_t j = 0; j < group; ++j) {
      const float2 a = code_at(rows, i % codes * group + j);
      const float2 b = code_at(rows, i / codes * group + j);
      const double real = double{a.x} - double{b.y};
      const double imaginary = double{a.y} + double{b.x};
      sum += real * real + imaginary * imaginary;
    }
    norms[i] = static_cast<float>(sum);
  }
}

}  // namespace

cudaError_t launch_centre_norms(const uint32_t* rows, int32_t parts, int32_t codes, int32_t group, float* norms,
                                cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(parts), static_cast<uint32_t>(std::max(codes * codes / kThreads, 1)));
  centre_norms_kernel<<<grid, kThreads, 0, stream>>>(rows, codes, group, norms);
  return cudaGetLastError();
}

cudaError_t prepare_encode_keys() {
  KeyTables most{};
  most.stages = kMostStages;
  most.group = kMaxHeadDim / 2;
  most.codes = kMostCodes;
  return cudaFuncSetAttribute(search_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SearchMemory::bytes(most));
}

cudaError_t encode_keys(const CommvqPages& pages, const KeyWork& work, int32_t beam, cudaStream_t stream) {
  const KeyTables& keys = pages.tables.keys;
  const auto count = static_cast<uint32_t>(pages.count());
  read_keys_kernel<<<count, kThreads, 0, stream>>>(pages, work.numbers);
  const int32_t norms = pages.groups * (keys.numbers.of_layer != 0 ? 1 : pages.members) * kSlots;
  norms_kernel<<<static_cast<uint32_t>((norms + kThreads - 1) / kThreads), kThreads, 0, stream>>>(pages, work.numbers,
                                                                                                  work.norms);
  const int32_t together = kRows / beam;
  const dim3 grid(count * static_cast<uint32_t>(keys.groups),
                  static_cast<uint32_t>((kSlots + together - 1) / together));
  search_kernel<<<grid, kThreads, static_cast<size_t>(SearchMemory::bytes(keys)), stream>>>(pages, work, beam);
  pack_keys_kernel<<<count, kThreads, 0, stream>>>(pages, work);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
