#include "kernels/pool/plan.h"

#include "kernels/prefill/prefill.h"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// Combines the numbers of a block's threads up to and including each one, after those of earlier calls.
template <typename Combine>
class Scan {
 public:
  __device__ explicit Scan(int32_t (&of_warps)[kWarps], const Combine& combine)
      : of_warps_(of_warps), combine_(combine) {}

  __device__ int32_t operator()(int32_t x) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    for (int32_t d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(kAll, x, d);
      if (lane >= d) x = combine_(x, other);
    }
    __syncthreads();  // the last numbers have been read
    if (lane == 31) of_warps_[warp] = x;
    __syncthreads();
    int32_t before = all;
    for (int32_t w = 0; w < kWarps; ++w) {
      if (w < warp) before = combine_(before, of_warps_[w]);
      all = combine_(all, of_warps_[w]);
    }
    return combine_(x, before);
  }

  int32_t all = 0;  // of all threads and calls

 private:
  int32_t (&of_warps_)[kWarps];
  const Combine combine_;
};

struct Highest {
  __device__ int32_t operator()(int32_t a, int32_t b) const { return max(a, b); }
};
struct Sum {
  // Wraps where so many pages are not divided by their sums.
  __device__ int32_t operator()(int32_t a, int32_t b) const {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};

__device__ int32_t length_of(const PlanArguments& a, int32_t sequence) {
  return min(max(a.lengths[sequence], 0), a.max_length);
}

/// Calls `act` for every sequence with all threads of a block; those behind the last one get an empty one.
template <typename Do>
__device__ void for_each_sequence(const PlanArguments& a, const Do& act) {
  __shared__ int32_t of_warps[kWarps];
  const auto clamped = [&a](int32_t start) { return min(max(start, 0), a.n_tokens); };
  Scan highest(of_warps, Highest{});
  for (int32_t base = 0; base < a.n_sequences; base += kThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    const bool exists = i < a.n_sequences;
    PooledSequence sequence{};
    sequence.query_begin = highest(exists ? clamped(a.query_starts[i]) : 0);
    if (exists) {
      sequence.length = length_of(a, i);
      const int32_t given = max(clamped(a.query_starts[i + 1]) - sequence.query_begin, 0);
      sequence.query_count = min(min(given, a.max_queries), sequence.length);
      sequence.pages = sequence.query_count > 0 ? sequence.last_new() + 1 : 0;
    }
    act(i, exists, sequence);
  }
}

/// Writes all sequences, and how many jobs of storing tokens are before each.
__device__ void plan_sequences(const PlanArguments& a) {
  __shared__ int32_t of_warps[kWarps];
  Scan work(of_warps, Sum{});
  Scan jobs(of_warps, Sum{});
  Scan whole(of_warps, Sum{});
  for_each_sequence(a, [&](int32_t i, bool exists, PooledSequence& sequence) {
    const bool any = sequence.query_count > 0;
    const int32_t crossed = any ? sequence.last_new() - sequence.first_new() : 0;
    const int32_t new_pages = max(crossed - 1, 0);  // that the tail does not hold
    const int32_t new_jobs = any ? max(crossed, 1) : 0;
    sequence.work = work(new_pages) - new_pages;
    const int32_t jobs_before = jobs(new_jobs) - new_jobs;
    const int32_t whole_pages = max(crossed - 2, 0);
    const int32_t whole_before = whole(whole_pages) - whole_pages;
    if (!exists) return;
    const int32_t tail = a.tails != nullptr ? a.tails[i] : -1;
    sequence.tail = tail < a.n_tails ? max(tail, -1) : -1;
    a.sequences[i] = sequence;
    a.job_starts[i] = jobs_before;
    a.whole_starts[i] = whole_before;
    for (int32_t k = 0; k < a.n_starts; ++k) {
      PooledSequence of_division = sequence;
      if (!a.starts[k].division.reads(sequence.query_count)) of_division.query_count = of_division.pages = 0;
      a.starts[k].sequences[i] = of_division;
    }
  });
  if (threadIdx.x == 0) {
    a.job_starts[a.n_sequences] = jobs.all;
    a.whole_starts[a.n_sequences] = whole.all;
  }
}

/// Fills rounds with lists, as many as memory has room for.
__device__ void plan_rounds(const PlanArguments& a, const PoolStarts& starts) {
  const TileRoom room = starts.division.room;
  int32_t round = 0;
  int32_t begin = 0;  // of the round
  int32_t place = 0;
  starts.rounds[0] = 0;
  for (int32_t i = 0; i < a.n_sequences; ++i) {
    const int32_t tiles = starts.pages[i + 1] - starts.pages[i];
    for (int32_t lists = tiles > 0 ? room.heads : 0; lists > 0;) {
      const int32_t fit = min((begin + room.tiles - place) / tiles, lists);
      place += fit * tiles;
      lists -= fit;
      if (lists == 0 || round + 1 == starts.n_rounds) break;
      begin = place;
      starts.rounds[++round] = begin;
    }
  }
  while (round < starts.n_rounds) starts.rounds[++round] = place;
}

__device__ void plan_starts(const PlanArguments& a, const PoolStarts& starts) {
  const PoolDivision& division = starts.division;
  const bool tiled = division.room.heads > 0;
  if (a.max_queries < division.least_queries) return;
  __shared__ int32_t of_warps[kWarps];
  Scan rows(of_warps, Sum{});
  Scan pages(of_warps, Sum{});
  for_each_sequence(a, [&](int32_t i, bool exists, const PooledSequence& sequence) {
    const bool reads = exists && division.reads(sequence.query_count);
    const int32_t rows_of_sequence = reads ? sequence.query_count * division.group : 0;
    const int32_t least = exists && !tiled ? 1 : 0;
    const int32_t blocks = max((rows_of_sequence + division.rows - 1) / division.rows, least);
    const int32_t of_list = reads ? sequence.pages : 0;
    const int32_t read = tiled ? (of_list + kTilePages - 1) / kTilePages
                               : static_cast<int32_t>(static_cast<uint32_t>(blocks) * static_cast<uint32_t>(of_list));
    const int32_t rows_before = rows(blocks) - blocks;
    const int32_t pages_before = Sum{}(pages(read), -read);
    if (!exists) return;
    starts.rows[i] = rows_before;
    starts.pages[i] = pages_before;
  });
  if (threadIdx.x == 0) {
    starts.rows[a.n_sequences] = rows.all;
    starts.pages[a.n_sequences] = pages.all;
  }
  if (!tiled) return;
  __syncthreads();
  if (threadIdx.x == 0) plan_rounds(a, starts);
}

/// Copies the part of a row of block numbers that the sequence has.
__device__ void copy_row(const PlanArguments& a, int32_t sequence) {
  const int32_t block_slots = a.block_pages * kSlots;
  const int32_t n = min((length_of(a, sequence) + block_slots - 1) / block_slots, a.capacity);
  const int32_t* from = a.block_table + sequence * a.table_stride;
  int32_t* to = a.blocks + static_cast<int64_t>(sequence) * a.capacity;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads) {
    const int32_t number = from[i];
    to[i] = number < a.n_blocks ? max(number, -1) : -1;
  }
}

/// One block per row of block numbers, one per division, and one for the sequences.
__global__ void __launch_bounds__(kThreads) pool_plan_kernel(const __grid_constant__ PlanArguments arguments) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block == 0) return plan_sequences(arguments);
  if (block <= arguments.n_starts) return plan_starts(arguments, arguments.starts[block - 1]);
  copy_row(arguments, block - 1 - arguments.n_starts);
}

}  // namespace

cudaError_t launch_pool_plan(const PlanArguments& arguments, cudaStream_t stream) {
  const int32_t blocks = 1 + arguments.n_starts + arguments.n_sequences;
  pool_plan_kernel<<<static_cast<uint32_t>(blocks), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
