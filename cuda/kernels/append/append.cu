#include "kernels/append/whole_pages.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Writes any page of these codes, one page per block.
template <PageCodes kCodes>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(const __grid_constant__ AppendArguments arguments) {
  extern __shared__ __align__(16) uint32_t shared[];
  const DeviceWrite write =
      arguments.writes != nullptr ? arguments.writes[blockIdx.x] : arguments.inline_writes[blockIdx.x];
  PageWriter<kCodes>(arguments, write, shared).run();
}

/// The same for heads of any shape. Blocks without scratch memory of their own take several pages.
__global__ void __launch_bounds__(kAppendThreads) append_any_kernel(const __grid_constant__ AppendArguments arguments) {
  extern __shared__ __align__(16) uint32_t shared[];
  for (auto i = static_cast<int32_t>(blockIdx.x); i < arguments.n_writes; i += static_cast<int32_t>(gridDim.x)) {
    const DeviceWrite write = arguments.writes != nullptr ? arguments.writes[i] : arguments.inline_writes[i];
    PageWriter<PageCodes::kGains, Heads::kAny>(arguments, write, shared).run();
    __syncthreads();
  }
}

/// Writes the first `n_slow` pages one per block; the other blocks share the whole pages evenly.
template <int32_t kHeadDim, WholePages kPages>
__global__ void __maxnreg__(kPages == WholePages::kPlain ? 64 : 128)
    append_whole_kernel(const __grid_constant__ AppendArguments arguments) {
  extern __shared__ __align__(16) uint8_t bytes[];
  const auto slow = static_cast<uint32_t>(arguments.n_slow);
  const auto share = [&](uint32_t block) {
    const int64_t whole = arguments.n_writes - arguments.n_slow;
    return block < slow ? static_cast<int32_t>(block)
                        : arguments.n_slow + static_cast<int32_t>(whole * (block - slow) / (gridDim.x - slow));
  };
  const int32_t begin = share(blockIdx.x);
  WholePageWriter<kHeadDim, kPages>(arguments, bytes).run(begin, share(blockIdx.x + 1) - begin);
}

const void* page_kernel(const PagesWritten& pages) {
  const auto kernel = pages.centres != 0 ? append_kernel<PageCodes::kCentred>
                      : pages.gains != 0 ? append_kernel<PageCodes::kGains>
                                         : append_kernel<PageCodes::kPlain>;
  return reinterpret_cast<const void*>(kernel);
}

struct Launch {
  const void* kernel = nullptr;
  int32_t blocks = 0;
  int32_t threads = kAppendThreads;
  int32_t shared_bytes = 0;
};

/// Returns how many blocks can be resident beside `slow` others, with equal shares of `n_pages`. If a share divides the
/// KV heads, each block gets heads of the same 32 tokens. Returns 0 if the device has too little shared memory for one
/// block.
int32_t whole_blocks(const Launch& launch, int32_t n_pages, int32_t slow, int32_t kv_heads) {
  int device = 0;
  int multiprocessors = 0;
  int resident = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, launch.kernel, launch.threads,
                                                static_cast<size_t>(launch.shared_bytes));
  if (resident == 0) return 0;
  const int32_t wave = std::max(multiprocessors * resident - slow, 1);
  const int32_t pages = std::min((n_pages + wave - 1) / wave, kMostPages);
  return kv_heads % pages == 0 ? (n_pages + pages - 1) / pages
                               : std::max(wave, (n_pages + kMostPages - 1) / kMostPages);
}

template <int32_t kHeadDim, WholePages kPages>
Launch whole(const AppendArguments& arguments) {
  using Writer = WholePageWriter<kHeadDim, kPages>;
  Launch launch{.kernel = reinterpret_cast<const void*>(append_whole_kernel<kHeadDim, kPages>),
                .blocks = 0,
                .threads = Writer::threads(arguments.head.keys),
                .shared_bytes = Writer::bytes(arguments.head.keys, arguments.dtype, arguments.pages)};
  const int32_t blocks =
      whole_blocks(launch, arguments.n_writes - arguments.n_slow, arguments.n_slow, arguments.kv_heads);
  if (blocks > 0) launch.blocks = arguments.n_slow + blocks;
  return launch;
}

template <WholePages kPages>
Launch whole_of(const AppendArguments& arguments) {
  return arguments.head.keys == 128 ? whole<128, kPages>(arguments) : whole<0, kPages>(arguments);
}

Launch choose_whole(const AppendArguments& arguments) {
  if (arguments.pages.centres != 0) return whole_of<WholePages::kCentred>(arguments);
  if (arguments.pages.gains != 0) return whole_of<WholePages::kGains>(arguments);
  return arguments.hadamard != 0 ? whole_of<WholePages::kHadamard>(arguments) : whole_of<WholePages::kPlain>(arguments);
}

/// Without blocks if pages must be written one by one.
Launch choose_any_whole(const AppendArguments& arguments) {
  // Only PageWriter writes trellis codes.
  const bool many_pages =
      arguments.pages.search_lanes == 0 && arguments.n_writes - arguments.n_slow > 2 * arguments.kv_heads;
  const bool rotates_eighths = arguments.rope.rotary_dim % (arguments.rope.half() ? 16 : 8) == 0;
  const bool whole = many_pages && rotates_eighths && arguments.vectors != 0 && arguments.has_equal_sides() &&
                     arguments.head.keys % kTileChannels == 0;
  return whole ? choose_whole(arguments) : Launch{};
}

Launch choose(const AppendArguments& arguments) {
  if (const Launch launch = choose_any_whole(arguments); launch.blocks > 0) return launch;
  // One warp of a block searches trellis paths while the others wait: smaller blocks leave registers for more of them.
  const bool equal = arguments.has_equal_sides();
  const bool apart = arguments.pages.scratch_apart != 0;
  return {.kernel = equal ? page_kernel(arguments.pages) : reinterpret_cast<const void*>(append_any_kernel),
          .blocks = apart ? std::min(arguments.n_writes, arguments.scratch_blocks) : arguments.n_writes,
          .threads = arguments.pages.search_lanes > 0 ? kAppendThreads / 2 : kAppendThreads,
          .shared_bytes = Layout{arguments.head, arguments.pages}.bytes()};
}

cudaError_t allow_shared(const void* kernel, int32_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <int32_t kHeadDim, WholePages kPages>
cudaError_t allow_whole(int32_t limit) {
  return allow_shared(reinterpret_cast<const void*>(append_whole_kernel<kHeadDim, kPages>), limit);
}

template <int32_t kHeadDim>
cudaError_t allow_all_whole(int32_t limit) {
  cudaError_t status = allow_whole<kHeadDim, WholePages::kPlain>(limit);
  if (status == cudaSuccess) status = allow_whole<kHeadDim, WholePages::kHadamard>(limit);
  if (status == cudaSuccess) status = allow_whole<kHeadDim, WholePages::kGains>(limit);
  if (status == cudaSuccess) status = allow_whole<kHeadDim, WholePages::kCentred>(limit);
  return status;
}

}  // namespace

cudaError_t prepare_append() {
  int device = 0;
  int limit = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  for (const PagesWritten& pages : {PagesWritten{}, PagesWritten{.gains = 1}, PagesWritten{.gains = 1, .centres = 1}}) {
    if (status == cudaSuccess) status = allow_shared(page_kernel(pages), limit);
  }
  if (status == cudaSuccess) status = allow_shared(reinterpret_cast<const void*>(append_any_kernel), limit);
  if (status == cudaSuccess) status = allow_all_whole<128>(limit);
  if (status == cudaSuccess) status = allow_all_whole<0>(limit);
  return status;
}

void PagesWritten::add(FormatCode format) {
  for (const CodeType kind : {format.keys(), format.values()}) {
    if (kind.has_gains()) gains = 1;
    if (kind.is_trellis()) search_lanes = kSlots;
  }
  if (format.centred()) centres = 1;
}

PagesWritten fit(PagesWritten pages, HeadShape head, int32_t shared_limit) {
  PagesWritten fitting = pages;
  const auto fits = [&] { return Layout{head, fitting}.bytes() <= shared_limit; };
  const auto search_fewer = [&] {
    while (fitting.search_lanes > 1 && !fits()) fitting.search_lanes /= 2;
  };
  search_fewer();
  if (fits()) return fitting;
  fitting = pages;
  fitting.scratch_apart = 1;
  search_fewer();
  return fitting;
}

size_t scratch_floats(HeadShape head) { return static_cast<size_t>(Layout{head, {}}.scratch_words()); }

bool writes_whole_pages(const AppendArguments& arguments) { return choose_any_whole(arguments).blocks > 0; }

cudaError_t launch_append(const AppendArguments& arguments, cudaStream_t stream) {
  const Launch launch = choose(arguments);
  void* parameters[] = {const_cast<AppendArguments*>(&arguments)};
  return cudaLaunchKernel(launch.kernel, dim3(static_cast<uint32_t>(launch.blocks)),
                          dim3(static_cast<uint32_t>(launch.threads)), parameters,
                          static_cast<size_t>(launch.shared_bytes), stream);
}

}  // namespace kvq::cuda
