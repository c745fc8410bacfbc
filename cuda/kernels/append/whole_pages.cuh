// Pages of exactly 32 new tokens, of which a prompt consists. A block writes the pages of the same tokens for several
// heads, which share their angles; while it encodes one head, the next head's tokens are in flight.
//
// Each page takes two steps: threads rotate and round 16 channels of a token each, then every warp encodes a tile.
#pragma once

#include "kernels/append/centre_search.cuh"
#include "kernels/append/gain_tile.cuh"
#include "kernels/append/scales.cuh"
#include "kernels/append/tokens.cuh"

#include <type_traits>

namespace kvq::cuda {

inline constexpr int32_t kMostPages = 16;  // per block

/// Kinds of pages written as a whole; PageWriter writes the others.
enum class WholePages { kPlain, kHadamard, kGains, kCentred };

/// `kHeadDim` 0: any multiple of 32. kPlain: integers and FP16 without rotation; kHadamard: also rotated integers;
/// kGains: scalar gain–shape codes and FP16; kCentred: also gain–shape codes relative to trained centres.
template <int32_t kHeadDim, WholePages kPages>
class WholePageWriter {
  static constexpr bool kCentred = kPages == WholePages::kCentred;
  static constexpr bool kGains = kPages == WholePages::kGains || kCentred;
  static constexpr bool kHadamard = kPages != WholePages::kPlain;
  static constexpr PageCodes kCodes = kCentred ? PageCodes::kCentred : (kGains ? PageCodes::kGains : PageCodes::kPlain);
  using RotatedPlane = std::conditional_t<kGains, SlotPlane, FloatPlane>;

 public:
  /// Each thread holds 16 channels of a token.
  __host__ __device__ static constexpr int32_t threads(int32_t head_dim) { return kSlots * head_dim / 16; }
  /// Shared memory for the block's writes, angles, two planes, tokens in flight, gains and centres.
  __host__ __device__ static int32_t bytes(int32_t head_dim, int32_t dtype, const PagesWritten& pages) {
    const int32_t tokens = 2 * kSlots * head_dim * element_bytes(dtype);
    const int32_t whole = Angles::bytes(head_dim) + 2 * plane_bytes(head_dim) + tokens +
                          (kGains ? GainTileWriter::kBytes : 0) +
                          (kCentred ? PageRotations::bytes(head_dim) + CentreSearcher::bytes(threads(head_dim)) : 0);
    const int32_t other = Layout{head_dim, pages}.bytes();
    return kWriteBytes + (whole > other ? whole : other);
  }

  __device__ WholePageWriter(const AppendArguments& arguments, uint8_t* shared)
      : a_(arguments),
        writes_(reinterpret_cast<DeviceWrite*>(shared)),
        rest_(shared + kWriteBytes),
        angles_(arguments, head_dim(), rest_),
        planes_(rest_ + Angles::bytes(head_dim())),
        staged_(planes_ + 2 * plane_bytes(head_dim())),
        thread_(static_cast<int32_t>(threadIdx.x)),
        slot_(thread_ / units()),
        unit_(thread_ % units()) {
    const int32_t rotary = a_.rope.half() ? a_.rope.rotary_dim / 16 : 0;
    // A thread holds both channels of each pair.
    eighths_[0] = unit_ < rotary ? unit_ : unit_ + rotary;
    eighths_[1] = unit_ < rotary ? unit_ + rotary : unit_ + units();
  }

  /// Writes pages [begin, begin + n) of the list.
  __device__ void run(int32_t begin, int32_t n) {
    // The list may be in host memory: fetch the first page's write without waiting for the others.
    const DeviceWrite* list = (a_.writes != nullptr ? a_.writes : a_.inline_writes) + begin;
    const auto* from = reinterpret_cast<const uint4*>(list);
    auto* pieces = reinterpret_cast<uint4*>(writes_);
    if (thread_ < kPieces) pieces[thread_] = from[thread_];
    angles_.start(thread_);
    __syncthreads();
    const int32_t piece = kPieces + thread_;
    uint4 others = make_uint4(0, 0, 0, 0);
    if (piece < n * kPieces) others = from[piece];
    int32_t token_begin = -1;
    const bool begins_whole = is_whole(writes_[0]);
    if (begins_whole) {
      token_begin = writes_[0].token_begin;
      fetch<true>(writes_[0]);
      fetch<false>(writes_[0]);
      find_rotations(writes_[0]);
    }
    if (piece < n * kPieces) pieces[piece] = others;
    __syncthreads();

    const int32_t lane = thread_ % 32;
    uint32_t whole = __ballot_sync(kAll, lane < n && is_whole(writes_[lane]));  // one bit per write
    uint32_t rest = __ballot_sync(kAll, lane < n && writes_[lane].target != 0) & ~whole;
    if (a_.enters_pages() && thread_ < 32 && (whole >> lane & 1U) != 0) {
      PageWriter<kCodes>(a_, writes_[lane], nullptr).enter();
    }
    if (!begins_whole && whole != 0) {
      fetch<true>(first_of(whole));
      fetch<false>(first_of(whole));
    }
    while (whole != 0) {
      const DeviceWrite& write = first_of(whole);
      whole &= whole - 1;
      if (write.token_begin != token_begin) {
        token_begin = write.token_begin;
        find_rotations(write);
        __syncthreads();
      }
      write_whole(write, whole);
    }
    // Slow pages come last so that the two paths' registers do not add up.
    for (; rest != 0; rest &= rest - 1) {
      __syncthreads();
      PageWriter<kCodes>(a_, first_of(rest), reinterpret_cast<uint32_t*>(rest_)).run();
    }
  }

 private:
  static constexpr int32_t kPieces = sizeof(DeviceWrite) / sizeof(uint4);
  static constexpr int32_t kWriteBytes = kMostPages * static_cast<int32_t>(sizeof(DeviceWrite));

  __host__ __device__ static constexpr int32_t element_bytes(int32_t dtype) { return dtype == 0 ? 4 : 2; }
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t head_dim) {
    return kHadamard ? RotatedPlane::bytes(head_dim) : HalfPlane::bytes(head_dim);
  }
  __device__ int32_t head_dim() const { return kHeadDim > 0 ? kHeadDim : a_.head.keys; }
  __device__ int32_t units() const { return head_dim() / 16; }  // threads per token
  __device__ uint8_t* plane(bool keys) const { return planes_ + (keys ? 0 : plane_bytes(head_dim())); }

  __device__ const DeviceWrite& first_of(uint32_t bits) const { return writes_[__ffs(static_cast<int>(bits)) - 1]; }

  __device__ bool is_whole(const DeviceWrite& write) const {
    const FormatCode format{write.format};
    const auto is_of_these = [](CodeType kind) {
      return kind.is_float16() || (kGains ? kind.has_gains() && !kind.is_trellis() : kind.is_integer());
    };
    const bool plain = !format.hadamard_keys() && !format.hadamard_values();
    // Hadamard rotation needs a token's channels in order across its threads.
    const bool in_order =
        (head_dim() & (head_dim() - 1)) == 0 && (!a_.rope.half() || a_.rope.rotary_dim % head_dim() == 0);
    const bool rotates_by_slots = write.has_positions != 0 && format.centred_keys();
    return write.source == 0 && !rotates_by_slots && write.token_count == kSlots &&
           (plain || (kHadamard && in_order)) && (format.group_shift() == 0 || format.values().is_float16()) &&
           is_of_these(format.keys()) && is_of_these(format.values());
  }

  /// Prefetches the tokens of the first page of `next` meanwhile.
  __device__ void write_whole(const DeviceWrite& write, uint32_t next) {
    // Recompute addresses for every page: kept, they would fill the registers.
    asm volatile("" : "+r"(thread_), "+r"(slot_), "+r"(unit_), "+r"(eighths_[0]), "+r"(eighths_[1]));
    const FormatCode format{write.format};
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    if constexpr (kCentred) {
      take_centres(write, format, next);
      encode_gains(write, format);
      return;
    }
    prepare<true>(write, format.hadamard_keys() && !format.keys().is_float16());
    if (next != 0) fetch<true>(first_of(next));
    prepare<false>(write, format.hadamard_values() && !format.values().is_float16());
    if (next != 0) fetch<false>(first_of(next));
    __syncthreads();
    if constexpr (kGains) {
      encode_gains(write, format);
    } else {
      encode(write, format);
    }
  }

  /// Shared memory into which channels [8·eighths_[i], …) of a thread are copied; no other thread reads it.
  template <bool kKeys>
  __device__ uint8_t* staged(int32_t i) const {
    return staged_ + (((kKeys ? 0 : 2) + i) * threads(head_dim()) + thread_) * 8 * element_bytes(a_.dtype);
  }

  template <bool kKeys>
  __device__ void fetch(const DeviceWrite& write) const {
    const HeadStrides& strides = kKeys ? a_.k_strides : a_.v_strides;
    const int64_t row = (write.token_begin + slot_) * strides.token + write.head * strides.head;
    const auto* tensor = static_cast<const uint8_t*>(kKeys ? a_.k : a_.v);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      copy_eight(staged<kKeys>(i), tensor + (row + 8 * eighths_[i]) * element_bytes(a_.dtype));
    }
  }

  __device__ void copy_eight(void* to, const void* from) const {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(address), "l"(from) : "memory");
    if (a_.dtype == 0) {
      asm volatile("cp.async.cg.shared.global [%0], [%1 + 16], 16;\n" ::"r"(address + 16), "l"(from) : "memory");
    }
  }

  /// Stores this thread's channels of a token as FP16, keys after RoPE, in the side's plane.
  template <bool kKeys>
  __device__ void prepare(const DeviceWrite& write, bool hadamard) const {
    __half2 halves[2][4];
    convert<kKeys>(write, halves);
    if (kHadamard && hadamard) {
      float x[2][8];
      to_floats(halves, x);
      put_rotated<kKeys>(x);
    } else {
      put_halves<kKeys>(halves);
    }
  }

  template <bool kKeys>
  __device__ void put_rotated(float (&x)[2][8]) const {
    rotate_hadamard(units(), x);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) RotatedPlane(plane(kKeys), head_dim()).put(slot_, eighths_[i], x[i]);
  }
  template <bool kKeys>
  __device__ void put_halves(const __half2 (&halves)[2][4]) const {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) HalfPlane(plane(kKeys), head_dim()).put(slot_, eighths_[i], halves[i]);
  }

  template <bool kKeys>
  __device__ void convert(const DeviceWrite& write, __half2 (&halves)[2][4]) const {
    float x[2][8];
    const LayerScales scales = a_.target_of(write).view.scales;
    if (a_.dtype == 1 && !(kKeys && a_.rope.rotary_dim > 0) && !scales) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint4 words = *reinterpret_cast<const uint4*>(staged<kKeys>(i));
        halves[i][0] = as_halves(words.x), halves[i][1] = as_halves(words.y);
        halves[i][2] = as_halves(words.z), halves[i][3] = as_halves(words.w);
      }
      if (!are_below_most(halves)) {
        to_floats(halves, x);
        if (!fit_halves(x)) *a_.status = 1;
        keep_finite(halves);
      }
    } else {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) read_eight(staged<kKeys>(i), a_.dtype, true, 0, x[i]);
      if (kKeys && a_.rope.rotary_dim > 0) angles_.table().rotate(slot_, unit_, eighths_, x);
      if (scales) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) scale_eight<kKeys>(scales, write.head, head_dim(), 8 * eighths_[i], x[i]);
      }
      to_halves(x, halves);
      if (!are_below_most(halves)) {
        if (!fit_halves(x)) *a_.status = 1;
        keep_finite(halves);
      }
    }
  }

  /// Stores both sides less their centres in their planes; ends with complete planes.
  __device__ void take_centres(const DeviceWrite& write, FormatCode format, uint32_t next) const {
    __half2 keys[2][4];
    __half2 values[2][4];
    convert<true>(write, keys);
    convert<false>(write, values);
    if (next != 0) {
      fetch<true>(first_of(next));
      fetch<false>(first_of(next));
    }
    if (format.key_indices() || format.value_indices()) {
      if (format.key_indices()) round<true>(write.head, keys);
      if (format.value_indices()) round<false>(write.head, values);
      __syncthreads();
      if (format.key_indices()) searcher().search(true, write.head, {plane(true), head_dim()});
      if (format.value_indices()) searcher().search(false, write.head, {plane(false), head_dim()});
      __syncthreads();
    }
    put_rest<true>(write.head, format, keys);
    put_rest<false>(write.head, format, values);
    __syncthreads();
  }

  template <bool kKeys>
  __device__ void round(int32_t head, const __half2 (&halves)[2][4]) const {
    float x[2][8];
    to_floats(halves, x);
    if (kKeys && a_.rope.rotary_dim > 0) page_rotations().table().template rotate<true>(slot_, unit_, eighths_, x);
    searcher().round(kKeys, head, slot_, units(), unit_, eighths_, x, {plane(kKeys), head_dim()});
  }

  template <bool kKeys>
  __device__ void put_rest(int32_t head, FormatCode format, const __half2 (&halves)[2][4]) const {
    if (format.code(kKeys).is_float16()) return put_halves<kKeys>(halves);
    float x[2][8];
    to_floats(halves, x);
    if (kKeys ? format.centred_keys() : format.centred_values()) {
      const bool several = kKeys ? format.key_indices() : format.value_indices();
      const int32_t index = several ? searcher().choose(kKeys, slot_, unit_) : 0;
      const float* from = SideCentres(a_, kKeys, head, false).floats + index * head_dim();
      float centre[2][8];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) read_eight(from, 0, true, 8 * eighths_[i], centre[i]);
      if (kKeys && a_.rope.rotary_dim > 0) page_rotations().table().rotate(slot_, unit_, eighths_, centre);
#pragma unroll
      for (int32_t i = 0; i < 16; ++i) x[i / 8][i % 8] -= centre[i / 8][i % 8];
    }
    put_rotated<kKeys>(x);
  }

  /// Writes indices of the tokens' centres after the bytes behind the codes have been zeroed.
  __device__ void write_indices(const DeviceWrite& write, FormatCode format) const {
    const bool keys = thread_ < kSlots;
    if (thread_ >= 2 * kSlots || !(keys ? format.key_indices() : format.value_indices())) return;
    const PagePlaces page = page_places(format, head_dim());
    const int32_t slot = thread_ % kSlots;
    auto* target = reinterpret_cast<uint8_t*>(write.target);
    target[(keys ? page.keys.centres : page.values_at + page.values.centres) + slot_place(slot)] =
        searcher().chosen(keys, slot);
  }

  __device__ uint8_t* of_centres() const {
    return staged_ + 2 * kSlots * head_dim() * element_bytes(a_.dtype) + GainTileWriter::kBytes;
  }
  __device__ PageRotations page_rotations() const { return {a_, head_dim(), of_centres()}; }
  __device__ CentreSearcher searcher() const {
    return {a_, head_dim(), threads(head_dim()), of_centres() + PageRotations::bytes(head_dim())};
  }

  __device__ void find_rotations(const DeviceWrite& write) const {
    angles_.find(write, thread_, threads(head_dim()));
    if constexpr (kCentred) page_rotations().find(write, thread_, threads(head_dim()));
  }

  /// Half of the warps encode keys, half values. Synchronizes the block once, when its tiles are in registers: the
  /// planes may change from then on.
  __device__ void encode(const DeviceWrite& write, FormatCode format) const {
    const int32_t tiles = head_dim() / kTileChannels;
    const int32_t warp = thread_ / 32;
    const bool keys = warp < tiles;
    const int32_t tile = keys ? warp : warp - tiles;
    const CodeType kind = format.code(keys);
    const bool rotated = kHadamard && !kind.is_float16() && (keys ? format.hadamard_keys() : format.hadamard_values());
    const LanePart part(tile);
    HalfTile halves;
    [[maybe_unused]] FloatTile floats;
    if constexpr (kHadamard) {
      if (rotated) floats.read({plane(keys), head_dim()}, part);
    }
    if (!rotated) halves.read({plane(keys), head_dim()}, part);
    __syncthreads();
    const auto write_side = [&](const auto& writer) {
      if (kind.is_float16()) {
        writer.write_halves(halves);
      } else if constexpr (kHadamard) {
        if (rotated) {
          writer.write(floats, kind);
        } else {
          writer.write(halves, kind);
        }
      } else {
        writer.write(halves, kind);
      }
    };
    auto* target = reinterpret_cast<uint8_t*>(write.target);
    if (keys) {
      write_side(TileWriter<true, kHeadDim>(a_, part, tile, target));
    } else {
      target += full_places(Side::kKeys, format.keys(), head_dim()).bytes;
      write_side(TileWriter<false, kHeadDim>(a_, part, tile, target));
    }
  }

  /// Encodes pages with gains, which take a few more barriers.
  __device__ void encode_gains(const DeviceWrite& write, FormatCode format) const {
    const int32_t tiles = head_dim() / kTileChannels;
    const int32_t warp = thread_ / 32;
    const bool keys = warp < tiles;
    const int32_t tile = keys ? warp : warp - tiles;
    const bool gains = !format.code(keys).is_float16();
    auto* target = reinterpret_cast<uint8_t*>(write.target);
    const LanePart part(tile);
    auto* maxima = reinterpret_cast<float*>(staged_ + 2 * kSlots * head_dim() * element_bytes(a_.dtype));
    GainTileWriter writer(format, keys, tile, head_dim(), maxima, planes_, target);
    HalfTile halves;
    if (gains) {
      writer.start({plane(keys), head_dim()}, a_.status);
    } else {
      halves.read({plane(keys), head_dim()}, part);
    }
    __syncthreads();
    if constexpr (kCentred) write_indices(write, format);
    if (gains) {
      writer.add_squares();
    } else if (keys) {
      TileWriter<true, kHeadDim>(a_, part, tile, target).write_halves(halves);
    } else {
      target += page_places(format, head_dim()).values_at;
      TileWriter<false, kHeadDim>(a_, part, tile, target).write_halves(halves);
    }
    if (format.is_float16()) return;
    __syncthreads();
    if (gains) writer.add_levels();
    __syncthreads();
    if (gains) writer.write();
    __syncthreads();
  }

  const AppendArguments& a_;
  DeviceWrite* writes_;
  uint8_t* rest_;
  const Angles angles_;
  uint8_t* planes_;
  uint8_t* staged_;
  int32_t thread_;
  int32_t slot_;
  int32_t unit_;
  int32_t eighths_[2];  // groups of eight channels
};

}  // namespace kvq::cuda
