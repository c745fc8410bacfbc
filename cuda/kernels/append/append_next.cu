#include "core/window.h"
#include "kernels/append/page.cuh"

namespace kvq::cuda {
namespace {

/// Plans the writes of one head's list by the host's rules (cache/append.cpp), for at most one new page.
class NextWrites {
 public:
  __device__ NextWrites(const AppendArguments& arguments, const ReserveView& reserve, int32_t head, int32_t n,
                        AppendKind kind)
      : a_(arguments),
        reserve_(reserve),
        head_(head),
        n_(kind == AppendKind::kSeal ? 0 : n),
        state_(arguments.target.view.heads[head]) {
    const DevicePage* list = pages();
    const int32_t used = state_.pages > 0 ? list[state_.pages - 1].count() : 0;
    if (state_.pages > 0 && is_float16(list[state_.pages - 1]) && used < kSlots) open_slots_ = used;
    const bool opened = state_.pages > 0 && used <= n;  // the last page, by the append whose pages are sealed now
    pages_before_ = state_.pages - (kind == AppendKind::kSeal && opened ? 1 : 0);
    pages_after_ = state_.pages + (n_ > room_of_open_page() ? 1 : 0);
    pages_counted_ = kind == AppendKind::kOpen ? state_.pages + (room_of_open_page() == 0 ? 1 : 0) : pages_after_;
  }

  __device__ const HeadState& state() const { return state_; }
  __device__ int32_t pages_after() const { return pages_after_; }

  /// Plans the write of the page that is sealed without taking tokens: the one that leaves the newest `recent`.
  __device__ bool seal(DeviceWrite& write) const {
    const int32_t index = pages_before_ - reserve_.recent;
    const bool takes_tokens = n_ > 0 && open_slots_ >= 0 && index == state_.pages - 1;
    if (pages_counted_ == pages_before_ || index < 0 || takes_tokens || stays_float16(index)) return false;
    const DevicePage page = pages()[index];
    if (!is_float16(page)) return false;
    write = make(index, &page, 0, 0);
    return true;
  }

  /// Plans the write of page `index` if it takes tokens; `done` went into earlier pages.
  __device__ bool take(int32_t index, int32_t& done, DeviceWrite& write) const {
    const bool open = index < state_.pages;
    if (open && open_slots_ < 0) return false;
    const DevicePage* old = open ? pages() + index : nullptr;
    const int32_t count = min(n_ - done, kSlots - (open ? open_slots_ : 0));
    if (count == 0) return false;
    write = make(index, old, done, count);
    done += count;
    return true;
  }

 private:
  __device__ const DevicePage* pages() const {
    return a_.target.view.pages + static_cast<int64_t>(head_) * a_.target.view.capacity;
  }
  __device__ static bool is_float16(const DevicePage& page) { return FormatCode{page.format()}.is_float16(); }
  __device__ int32_t room_of_open_page() const { return open_slots_ >= 0 ? kSlots - open_slots_ : 0; }
  /// Whether the final format of a page is FP16.
  __device__ bool ends_float16(int32_t index) const { return index < reserve_.sink || reserve_.sealed == 0; }
  __device__ bool stays_float16(int32_t index) const {
    return ends_float16(index) || index >= pages_counted_ - reserve_.recent;
  }

  __device__ DeviceWrite make(int32_t index, const DevicePage* old, int32_t token, int32_t count) const {
    const bool float16 = stays_float16(index);
    const bool in_place = old != nullptr && float16;
    DeviceWrite write{};
    write.source = old != nullptr ? old->data : 0;
    write.kept = static_cast<uint8_t>(old != nullptr ? old->count() : 0);
    if (in_place) {
      write.target = old->data;
    } else if (float16 && !ends_float16(index)) {
      write.target = reserve_.open[head_ * reserve_.ring + index % reserve_.ring];
    } else {
      write.target = reserve_.finals[static_cast<int64_t>(head_) * reserve_.capacity + index];
    }
    write.head = head_;
    write.token_begin = token;
    write.token_count = static_cast<uint8_t>(count);
    write.token_position = state_.next_position + token;
    write.index = index;
    write.first_position = old != nullptr ? old->first_position : state_.next_position + token;
    write.format = float16 ? 0U : static_cast<uint32_t>(reserve_.sealed);
    write.has_positions = static_cast<uint8_t>(old != nullptr && old->has_positions() ? 1 : 0);
    return write;
  }

  const AppendArguments& a_;
  const ReserveView& reserve_;
  int32_t head_;
  int32_t n_;  // new tokens
  HeadState state_;
  int32_t open_slots_ = -1;  // used slots of the last page if it takes tokens
  int32_t pages_before_;
  int32_t pages_after_;
  int32_t pages_counted_;  // that decide which ones stay FP16
};

/// Moves the elements from `begin` + `by` up to `end` forward by `by`. Called by all threads of a block.
template <typename T>
__device__ void move_up(T* array, int32_t begin, int32_t end, int32_t by) {
  for (int32_t first = begin; first < end - by; first += static_cast<int32_t>(blockDim.x)) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    T moved{};
    if (i < end - by) moved = array[i + by];
    __syncthreads();
    if (i < end - by) array[i] = moved;
    __syncthreads();
  }
}

/// Frees the pages of a head that no later query sees, by the host's rules (cache/forget.cpp), if `n` tokens open a
/// page. Their memory serves other pages, and places move up. Called by all threads of a block.
__device__ void forget_hidden(const SequenceView& view, const ReserveView& reserve, int32_t head, int32_t n) {
  const HeadState state = view.heads[head];
  DevicePage* list = view.pages + static_cast<int64_t>(head) * view.capacity;
  const auto last_of = [&](int32_t index) {
    const DevicePage& page = list[index];
    if (!page.has_positions()) return page.first_position + page.count() - 1;
    return view.positions[(static_cast<int64_t>(head) * view.capacity + index) * kSlots + page.count() - 1];
  };
  if (state.room < n || state.pages == 0) return;
  const DevicePage& newest = list[state.pages - 1];
  const int32_t open = FormatCode{newest.format()}.is_float16() ? kSlots - newest.count() : 0;
  if (n <= open) return;
  const int32_t before = (reserve.recent - 1) * kSlots + reserve.step - 1;
  const int64_t hidden = newest_hidden(max(state.next_position + open - before, 0), reserve.window);
  const int32_t first = reserve.sink;
  int32_t pages = 0;
  while (first + pages < state.pages - reserve.recent && last_of(first + pages) <= hidden) ++pages;
  if (pages == 0) return;
  uint64_t* finals = reserve.finals + static_cast<int64_t>(head) * reserve.capacity;
  const int32_t places = reserve.final_counts[head];
  move_up(finals, first, places, pages);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pages; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t place = places - pages + i;
    if (place >= first) finals[place] = list[first + i].data;
  }
  if (threadIdx.x == 0) {
    uint64_t* ring = reserve.open + static_cast<int64_t>(head) * reserve.ring;
    for (int32_t times = pages % reserve.ring; times > 0; --times) {
      const uint64_t begin = ring[0];
      for (int32_t i = 1; i < reserve.ring; ++i) ring[i - 1] = ring[i];
      ring[reserve.ring - 1] = begin;
    }
  }
  __syncthreads();
  move_up(list, first, state.pages, pages);
  if (view.positions != nullptr) {
    int32_t* positions = view.positions + static_cast<int64_t>(head) * view.capacity * kSlots;
    move_up(positions, first * kSlots, state.pages * kSlots, pages * kSlots);
  }
  if (threadIdx.x == 0) view.heads[head].pages = state.pages - pages;
  __syncthreads();
}

/// One head per block; no other block reads or writes its list.
template <PageCodes kCodes, Heads kHeads>
__global__ void __launch_bounds__(kAppendThreads)
    append_next_kernel(const __grid_constant__ AppendArguments arguments, const __grid_constant__ ReserveView reserve,
                       int32_t n, AppendKind kind) {
  extern __shared__ __align__(16) uint32_t shared[];
  const auto head = static_cast<int32_t>(blockIdx.x);
  if (reserve.window != 0 && kind != AppendKind::kSeal) forget_hidden(arguments.target.view, reserve, head, n);
  const NextWrites next(arguments, reserve, head, n, kind);
  const HeadState state = next.state();
  const int32_t appended = kind == AppendKind::kSeal ? 0 : n;
  if (state.room < appended) {
    if (threadIdx.x == 0) arguments.status[1] = kNoRoom;
    return;
  }
  DeviceWrite writes[3];
  int32_t n_writes = 0;
  int32_t done = 0;
  if (next.seal(writes[n_writes])) ++n_writes;
  for (int32_t index = max(state.pages - 1, 0); index < next.pages_after(); ++index) {
    if (next.take(index, done, writes[n_writes])) ++n_writes;
  }
  __syncthreads();  // all threads have read the table
#pragma unroll 1
  for (int32_t i = 0; i < n_writes; ++i) {
    const DeviceWrite& write = writes[i];
    PageWriter<kCodes, kHeads>(arguments, write, shared).run();
    // Pages with gaps keep the positions of all their slots.
    if (write.has_positions != 0 && static_cast<int32_t>(threadIdx.x) < write.token_count) {
      const int64_t page = static_cast<int64_t>(head) * arguments.target.view.capacity + write.index;
      const int32_t token = write.token_begin + static_cast<int32_t>(threadIdx.x);
      arguments.target.view.positions[page * kSlots + write.kept + static_cast<int32_t>(threadIdx.x)] =
          state.next_position + token;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    arguments.target.view.heads[head] = {next.pages_after(), state.length + appended, state.next_position + appended,
                                         state.room - appended};
  }
}

const void* next_kernel(bool equal_sides, bool centres) {
  const auto kernel = !equal_sides ? append_next_kernel<PageCodes::kGains, Heads::kAny>
                      : centres    ? append_next_kernel<PageCodes::kCentred, Heads::kEqual>
                                   : append_next_kernel<PageCodes::kGains, Heads::kEqual>;
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

cudaError_t prepare_append_next(int32_t shared_limit) {
  for (const void* kernel : {next_kernel(true, false), next_kernel(true, true), next_kernel(false, false)}) {
    const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t launch_append_next(const AppendArguments& arguments, const ReserveView& reserve, int32_t n, AppendKind kind,
                               cudaStream_t stream) {
  void* parameters[] = {const_cast<AppendArguments*>(&arguments), const_cast<ReserveView*>(&reserve), &n, &kind};
  return cudaLaunchKernel(next_kernel(arguments.has_equal_sides(), arguments.pages.centres != 0),
                          dim3(static_cast<uint32_t>(arguments.kv_heads)), dim3(kAppendThreads), parameters,
                          static_cast<size_t>(Layout{arguments.head, arguments.pages}.bytes()), stream);
}

}  // namespace kvq::cuda
