// Training of key codebooks, one key per warp.
#include "kernels/train/keys.h"

#include "kernels/device/warp.cuh"
#include "kernels/train/products.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;

uint32_t blocks_of(int32_t keys) { return static_cast<uint32_t>((keys + kWarps - 1) / kWarps); }

__device__ int32_t warp_key() {
  return static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / kWarpLanes;
}
__device__ int32_t warp_lane() { return static_cast<int32_t>(threadIdx.x) % kWarpLanes; }

/// Rows are 2 conj(z), then 2 conj(i·z): their products with keys are u and v of all codes.
struct CodeDirections {
  static constexpr bool kAlongDepth = true;
  const float* rows;
  int32_t codes;
  int32_t plane;

  __device__ float operator()(int32_t line, int32_t depth) const {
    if (line < codes) return 2.0F * rows[int64_t{line} * 2 * plane + depth];
    const float* row = rows + int64_t{line - codes} * 2 * plane;
    return depth < plane ? -2.0F * row[depth + plane] : 2.0F * row[depth - plane];
  }
};

/// A key's weight for its own codes, otherwise 0; lines are [stages]{a, b}[codes].
struct Chosen {
  static constexpr bool kAlongDepth = false;
  const uint8_t* indices;
  const float* weights;
  int32_t of_key;  // indices per key
  int32_t shift;   // log2 of the codes
  int32_t first;   // first line

  __device__ float operator()(int32_t line, int32_t key) const {
    const int32_t at = first + line;
    const bool has = indices[int64_t{key} * of_key + (at >> shift)] == (at & ((1 << shift) - 1));
    return !has ? 0.0F : weights == nullptr ? 1.0F : weights[key];
  }
};

int32_t log2_of(int32_t power) {
  int32_t shift = 0;
  while ((1 << shift) < power) ++shift;
  return shift;
}

Chosen chosen(const KeyChoices& choices, bool weighted, int32_t first = 0) {
  return {choices.indices, weighted ? choices.weights : nullptr, 2 * choices.stages, log2_of(choices.codes), first};
}

/// Returns the first continuation of `rows` sums of centres that comes after `after`; places are ordered by (row, a,
/// b). Place 0 if every cost is NaN.
__device__ Placed best_centre(const KeyCodes& stage, const float* products, const float* energies, int32_t rows,
                              const Placed& after) {
  Placed best{INFINITY, 0};
  const int32_t codes = stage.codes;
  for (int32_t row = 0; row < rows; ++row) {
    const float* u = products + int64_t{row} * 2 * codes;
    const float* v = u + codes;
    const float energy = energies[row];
    for (int32_t i = warp_lane(); i < codes * codes; i += kWarpLanes) {
      const int32_t a = i & (codes - 1);
      const int32_t b = i / codes;
      const float cost = energy + ((stage.norms[int64_t{b} * stage.width + a] - v[b]) - u[a]);
      const Placed each{cost, (row * codes + a) * codes + b};
      if (comes_before(each, best) && comes_before(after, each)) best = each;
    }
  }
  return first_of_lanes(best);
}

/// The greedy sum of centres stays the first, and the best others follow, as in KeyEncoder::step.
__global__ void __launch_bounds__(kThreads) step_kernel(KeySearch search) {
  const int32_t key = warp_key();
  if (key >= search.n) return;
  const KeyCodes& stage = search.codes;
  const int64_t first = int64_t{key} * search.live;
  const float* products = search.products + first * 2 * stage.codes;
  const float* energies = search.energies + first;
  const Placed none{-INFINITY, -1};
  const Placed greedy = best_centre(stage, products, energies, 1, none);
  Placed taken = none;
  for (int32_t i = 0; i < search.next_live; ++i) {
    Placed next = greedy;
    if (i > 0) {
      taken = best_centre(stage, products, energies, search.live, taken);
      if (taken.place == greedy.place) taken = best_centre(stage, products, energies, search.live, taken);
      next = taken;
    }
    const int32_t b = next.place & (stage.codes - 1);
    const int32_t a = next.place / stage.codes & (stage.codes - 1);
    const int32_t row = next.place / (stage.codes * stage.codes);
    const int64_t to = int64_t{key} * search.next_live + i;
    if (warp_lane() == 0) {
      search.steps[to] = {static_cast<uint8_t>(row), static_cast<uint8_t>(a), static_cast<uint8_t>(b), 0};
      search.next_energies[to] = next.number - greedy.number;
    }
    const int32_t plane = stage.length / 2;
    const float* source = search.vectors + (first + row) * stage.length;
    const float* of_a = stage.rows + int64_t{a} * stage.length;
    const float* of_b = stage.rows + int64_t{b} * stage.length;
    float* target = search.next_vectors + to * stage.length;
    for (int32_t j = warp_lane(); j < plane; j += kWarpLanes) {
      target[j] = source[j] - (of_a[j] - of_b[plane + j]);
      target[plane + j] = source[plane + j] - (of_a[plane + j] + of_b[j]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) search_end_kernel(KeySearchEnd end) {
  const int32_t key = warp_key();
  if (key >= end.n) return;
  const int32_t stages = end.codes.stages;
  int32_t live = end.codes.live(stages, end.beam);
  int32_t row = 0;
  for (int32_t i = 1; i < live; ++i) {
    if (end.energies[int64_t{key} * live + i] < end.energies[int64_t{key} * live + row]) row = i;
  }
  if (end.rest != nullptr) {
    const float* source = end.vectors + (int64_t{key} * live + row) * end.codes.length;
    float* target = end.rest + int64_t{key} * end.codes.length;
    for (int32_t j = warp_lane(); j < end.codes.length; j += kWarpLanes) target[j] = source[j];
  }
  if (warp_lane() != 0) return;
  uint8_t* indices = end.indices + int64_t{key} * 2 * stages;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    live = end.codes.live(stage + 1, end.beam);
    const KeyStep step = end.steps[int64_t{stage} * end.n * end.beam + int64_t{key} * live + row];
    indices[2 * stage] = step.a;
    indices[2 * stage + 1] = step.b;
    row = step.row;
  }
}

/// x[i] = e^(scale · (product[i] − norm[i] − the largest such difference))
__device__ void soften(const float* products, const float* norms, float scale, int32_t codes, float* x) {
  float largest = -INFINITY;
  for (int32_t i = warp_lane(); i < codes; i += kWarpLanes) largest = fmaxf(largest, products[i] - norms[i]);
  largest = largest_of_lanes(largest);
  for (int32_t i = warp_lane(); i < codes; i += kWarpLanes) {
    x[i] = expf(((products[i] - norms[i]) - largest) * scale);
  }
}

__global__ void __launch_bounds__(kThreads) soften_kernel(SoftKeys keys) {
  const int32_t key = warp_key();
  if (key >= keys.n) return;
  const int32_t codes = keys.stage.codes;
  const int64_t at = int64_t{key} * 2 * codes;
  soften(keys.products + at, keys.code_norms, keys.scale, codes, keys.factors + at);
  soften(keys.products + at + codes, keys.code_norms, keys.scale, codes, keys.factors + at + codes);
}

/// Completes W's sums with p and q, as Assignment::assign_block_softly.
__global__ void __launch_bounds__(kThreads) weigh_soft_kernel(SoftKeys keys, float least_sum) {
  const int32_t key = warp_key();
  if (key >= keys.n) return;
  const int32_t codes = keys.stage.codes;
  const int64_t at = int64_t{key} * 2 * codes;
  float* p = keys.factors + at;
  const float* q = p + codes;
  float* of_a = keys.sums + at;
  float* of_b = of_a + codes;
  float sum = 0.0F;
  for (int32_t i = warp_lane(); i < codes; i += kWarpLanes) sum = fmaf(p[i], of_a[i], sum);
  sum = sum_of_lanes(sum);
  const float weight = keys.weights == nullptr ? 1.0F : keys.weights[key];
  const bool in_range = sum >= least_sum;
  int32_t a = -1;
  int32_t b = -1;
  if (!in_range) {  // uniform over the warp
    const float zero = 0.0F;
    const Placed nearest = best_centre(keys.stage, keys.products + at, &zero, 1, {-INFINITY, -1});
    a = nearest.place / codes;
    b = nearest.place % codes;
  }
  const float factor = in_range ? weight / sum : 0.0F;
  for (int32_t i = warp_lane(); i < codes; i += kWarpLanes) {
    const float scaled = p[i] * factor;
    p[i] = scaled;
    of_a[i] = in_range ? of_a[i] * scaled : i == a ? weight : 0.0F;
    of_b[i] = in_range ? of_b[i] * (q[i] * factor) : i == b ? weight : 0.0F;
  }
  if (warp_lane() != 0) return;
  keys.indices[int64_t{key} * 2] = static_cast<uint8_t>(in_range ? 0 : a);
  keys.indices[int64_t{key} * 2 + 1] = static_cast<uint8_t>(in_range ? 0 : b);
  keys.far_weights[key] = in_range ? 0.0F : weight;
}

__global__ void add_parts_kernel(const double* parts, int32_t count, int64_t n, double* sums) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double sum = 0.0;
  for (int32_t part = 0; part < count; ++part) sum += parts[part * n + i];
  sums[i] = sum;
}

__global__ void system_kernel(const double* pairs, int32_t stages, int32_t codes, double* system) {
  const int64_t n = int64_t{stages} * codes;
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= n * n) return;
  const auto row = static_cast<int32_t>(at / n);
  const auto column = static_cast<int32_t>(at % n);
  double real = 0.0;
  double imaginary = 0.0;
  if (column / codes <= row / codes) {
    const auto line = [codes](int32_t code, int32_t side) {
      return (int64_t{2} * (code / codes) + side) * codes + code % codes;
    };
    const auto count = [pairs, n](int64_t x, int64_t y) {
      return x >= y ? pairs[x * 2 * n + y] : pairs[y * 2 * n + x];
    };
    real = count(line(row, 0), line(column, 0)) + count(line(row, 1), line(column, 1));
    imaginary = count(line(row, 0), line(column, 1)) - count(line(row, 1), line(column, 0));
  }
  system[2 * at] = real;
  system[2 * at + 1] = imaginary;
}

__global__ void __launch_bounds__(kThreads)
    energy_kernel(const float* vectors, const float* weights, int32_t length, int32_t n, double* parts) {
  __shared__ double of_warp[kWarps];
  double sum = 0.0;
  for (int32_t key = warp_key(); key < n; key += kEnergyParts * kWarps) {
    const float* vector = vectors + int64_t{key} * length;
    double squares = 0.0;
    for (int32_t j = warp_lane(); j < length; j += kWarpLanes) {
      squares += static_cast<double>(vector[j]) * static_cast<double>(vector[j]);
    }
    sum += (weights == nullptr ? 1.0 : static_cast<double>(weights[key])) * sum_of_lanes(squares);
  }
  if (warp_lane() == 0) of_warp[threadIdx.x / kWarpLanes] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0.0;
  for (const double each : of_warp) total += each;
  parts[blockIdx.x] = total;
}

constexpr uint32_t kElementThreads = 256;
uint32_t element_blocks(int64_t n) { return static_cast<uint32_t>((n + kElementThreads - 1) / kElementThreads); }

}  // namespace

cudaError_t launch_add_parts(const double* parts, int32_t count, int64_t n, double* sums, cudaStream_t stream) {
  add_parts_kernel<<<element_blocks(n), kElementThreads, 0, stream>>>(parts, count, n, sums);
  return cudaGetLastError();
}

cudaError_t launch_key_products(const KeyCodes& stage, const float* vectors, int32_t rows, float* products,
                                cudaStream_t stream) {
  return multiply(Rows{vectors, stage.length}, CodeDirections{stage.rows, stage.codes, stage.length / 2}, rows,
                  2 * stage.codes, stage.length, Store{products, 2 * stage.codes}, stream);
}

cudaError_t launch_key_step(const KeySearch& search, cudaStream_t stream) {
  step_kernel<<<blocks_of(search.n), kThreads, 0, stream>>>(search);
  return cudaGetLastError();
}

cudaError_t launch_key_search_end(const KeySearchEnd& end, cudaStream_t stream) {
  search_end_kernel<<<blocks_of(end.n), kThreads, 0, stream>>>(end);
  return cudaGetLastError();
}

cudaError_t launch_soft_keys(const SoftKeys& keys, float least_sum, cudaStream_t stream) {
  const int32_t codes = keys.stage.codes;
  const int32_t width = keys.stage.width;
  soften_kernel<<<blocks_of(keys.n), kThreads, 0, stream>>>(keys);
  cudaError_t status = cudaGetLastError();
  // Σ_b W and Σ_a W, still without the factors p and q.
  if (status == cudaSuccess) {
    status = multiply(Rows{keys.factors + codes, 2 * codes}, Rows{keys.k, width}, keys.n, codes, codes,
                      Store{keys.sums, 2 * codes}, stream);
  }
  if (status == cudaSuccess) {
    status = multiply(Rows{keys.factors, 2 * codes}, Rows{keys.transposed, width}, keys.n, codes, codes,
                      Store{keys.sums + codes, 2 * codes}, stream);
  }
  if (status != cudaSuccess) return status;
  weigh_soft_kernel<<<blocks_of(keys.n), kThreads, 0, stream>>>(keys, least_sum);
  return cudaGetLastError();
}

cudaError_t sum_chosen_vectors(const KeyChoices& choices, const float* vectors, int32_t length, int32_t n,
                               double* parts, double* sums, cudaStream_t stream) {
  return sum_products<false>(chosen(choices, true), Columns{vectors, length}, choices.lines(), length, n, parts, sums,
                             stream);
}

cudaError_t sum_chosen_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream) {
  return sum_products<false>(chosen(choices, true), chosen(choices, false, choices.codes), choices.codes, choices.codes,
                             n, parts, sums, stream);
}

cudaError_t sum_all_pairs(const KeyChoices& choices, int32_t n, double* parts, double* sums, cudaStream_t stream) {
  return sum_products<true>(chosen(choices, true), chosen(choices, false), choices.lines(), choices.lines(), n, parts,
                            sums, stream);
}

cudaError_t sum_soft_pairs(const SoftKeys& keys, double* parts, double* sums, cudaStream_t stream) {
  const int32_t codes = keys.stage.codes;
  return sum_products<false>(Columns{keys.factors, 2 * codes}, Columns{keys.factors + codes, 2 * codes}, codes, codes,
                             keys.n, parts, sums, stream);
}

cudaError_t sum_soft_vectors(const SoftKeys& keys, const float* vectors, double* parts, double* sums,
                             cudaStream_t stream) {
  const int32_t codes = keys.stage.codes;
  return sum_products<false>(Columns{keys.sums, 2 * codes}, Columns{vectors, keys.stage.length}, 2 * codes,
                             keys.stage.length, keys.n, parts, sums, stream);
}

cudaError_t launch_key_system(const double* pairs, int32_t stages, int32_t codes, double* system, cudaStream_t stream) {
  const int64_t n = int64_t{stages} * codes;
  system_kernel<<<element_blocks(n * n), kElementThreads, 0, stream>>>(pairs, stages, codes, system);
  return cudaGetLastError();
}

cudaError_t launch_key_energy(const float* vectors, const float* weights, int32_t length, int32_t n, double* parts,
                              cudaStream_t stream) {
  energy_kernel<<<kEnergyParts, kThreads, 0, stream>>>(vectors, weights, length, n, parts);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
