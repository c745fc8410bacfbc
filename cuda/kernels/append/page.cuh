// Writes one page from existing FP16 slots and new tokens: rotation, conversion, encoding. Arithmetic follows the
// host's encoder operation by operation (formats/integer/integer.cpp), so that all backends write the same bytes; files
// that include this are compiled without FMA contraction.
#pragma once

#include "kernels/append/layout.cuh"
#include "kernels/append/scales.cuh"
#include "kernels/device/head_rotation.cuh"
#include "kernels/device/rope.cuh"
#include "kernels/device/tensor.cuh"

namespace kvq::cuda {

inline constexpr int32_t kAppendThreads = 256;
constexpr uint32_t kAll = 0xFFFFFFFFU;
constexpr float kMaxHalf = 65504.0F;

/// x / (2^bits − 1), correctly rounded: the product with the reciprocal, corrected by its remainder.
__device__ inline float over_top(float x, int32_t bits) {
  const float top = static_cast<float>((1 << bits) - 1);
  const float reciprocal =
      bits == 8 ? 1.0F / 255.0F : (bits == 4 ? 1.0F / 15.0F : (bits == 3 ? 1.0F / 7.0F : 1.0F / 3.0F));
  const float quotient = x * reciprocal;
  return fmaf(fmaf(-quotient, top, x), reciprocal, quotient);
}

/// Scale and minimum of one group as the page stores them.
struct Quantizer {
  __half scale;
  __half minimum;
  float inverse_scale;  // 0 for a constant group

  __device__ Quantizer(float low, float high, int32_t bits) {
    minimum = __float2half_rn(fminf(fmaxf(low, -kMaxHalf), kMaxHalf));
    scale = __float2half_rn(fminf(over_top(high - __half2float(minimum), bits), kMaxHalf));
    const float step = __half2float(scale);
    inverse_scale = step > 0.0F ? 1.0F / step : 0.0F;
  }
};

/// Codes that an instance supports; each one that it lacks saves registers.
enum class PageCodes { kPlain, kGains, kCentred };

/// Heads that an instance supports. kEqual: at most kMaxHeadDim channels, equally many of keys and of values, rotated
/// from the first one on. kScalar128: 128 of them, without trellis codes: a page is written once, so that a block waits
/// for instructions longer than it computes, and those that divide by unknown sizes are many.
enum class Heads { kEqual, kAny, kScalar128 };

template <PageCodes kCodes, Heads kHeads = Heads::kEqual>
class PageWriter {
  static constexpr bool kEqual = kHeads != Heads::kAny;
  static constexpr bool kScalar128 = kHeads == Heads::kScalar128;
  static constexpr int32_t kShare = (kEqual ? kMaxHeadDim : kMaxChannels) / 32;  // a lane's channels of a row

 public:
  __device__ PageWriter(const AppendArguments& arguments, const DeviceWrite& write, uint32_t* shared)
      : a_(arguments),
        w_(write),
        layout_(layout_of(arguments)),
        thread_(static_cast<int32_t>(threadIdx.x)),
        threads_(kScalar128 ? kAppendThreads : static_cast<int32_t>(blockDim.x)),
        shared_(shared),
        key_words_(shared),
        value_words_(key_words_ + layout_.key_words()),
        scratch_(reinterpret_cast<float*>(value_words_ + layout_.value_words())),
        minima_(scratch_ + layout_.shared_scratch_words()),
        inverse_scales_(minima_ + layout_.groups()),
        inv_freq_(inverse_scales_ + layout_.groups()) {
    if (layout_.pages.scratch_apart != 0) {
      scratch_ = arguments.scratch + static_cast<int64_t>(blockIdx.x) * layout_.scratch_words();
    }
  }

  /// Writes the page, and a copy of it in FP16 unless that is null. The copy may be the source.
  __device__ void run(uint8_t* float16_copy = nullptr) {
    const FormatCode format{w_.format};
    const bool float16 = format.is_float16();
    const bool in_place = float16 && w_.source == w_.target;
    fill_angles();
    if (!in_place) load_kept();
    __syncthreads();
    write_tokens(in_place);
    __syncthreads();
    auto* target = reinterpret_cast<uint8_t*>(w_.target);
    if (float16_copy != nullptr) {
      const PagePlaces page = page_places(FormatCode{}, layout_.head);
      write_side<true>(FormatCode{}, page, page.keys, float16_copy);
      write_side<false>(FormatCode{}, page, page.values, float16_copy + page.values_at);
      __syncthreads();  // encoding overwrites what has been copied
    }
    if (!in_place) {
      const PagePlaces page = page_places(format, layout_.head);
      write_side<true>(format, page, page.keys, target);
      __syncthreads();
      write_side<false>(format, page, page.values, target + page.values_at);
    }
    if (thread_ == 0 && a_.enters_pages()) enter();
  }

  /// Writes the page's entry in the table.
  __device__ void enter() const {
    const AppendTarget& to = a_.target_of(w_);
    const int64_t at = static_cast<int64_t>(w_.head) * to.view.capacity + w_.index;
    to.view.pages[at] = {w_.target, w_.first_position,
                         DevicePage::state_of(w_.format, w_.kept + w_.token_count, w_.has_positions != 0)};
    if (w_.ends_list == 0) return;
    to.view.heads[w_.head] = {w_.index + 1, to.after.length, to.after.next_position, to.after.room};
  }

 private:
  __device__ static Layout layout_of(const AppendArguments& arguments) {
    Layout layout{arguments.head, arguments.pages};
    if constexpr (kScalar128) {
      layout.head.keys = 128;
      layout.pages.search_lanes = 0;
    }
    if constexpr (kEqual) {
      layout.head.values = layout.head.keys;
      layout.pages.scratch_apart = 0;
    }
    return layout;
  }
  template <bool kKeys>
  __device__ int32_t channels() const {
    return kKeys ? layout_.head.keys : layout_.head.values;
  }
  template <bool kKeys>
  __device__ bool has_channel(int32_t channel) const {
    return kEqual || channel < channels<kKeys>();
  }
  template <bool kKeys>
  __device__ int32_t row_floats() const {
    return Layout::row_floats(channels<kKeys>());
  }
  // Channels of keys that RoPE rotates count from this one.
  __device__ int32_t rotary_begin() const { return kEqual ? 0 : a_.rope.begin; }

  // Indices of FP16 values in the shared-memory planes and in a page.
  __device__ static int32_t key_half(int32_t slot, int32_t channel) {
    return 2 * (channel / 2 * (kSlots + 1) + slot) + channel % 2;
  }
  __device__ static int32_t page_key_half(int32_t slot, int32_t channel) {
    return 2 * page_word<true>(CodeType::float16(), 0, channel / 2 * kSlots + slot) + channel % 2;
  }
  __device__ int32_t page_value_half(int32_t slot, int32_t channel) const {
    return 2 * page_word<false>(CodeType::float16(), channels<false>(), slot / 2 * layout_.lanes() + channel) +
           slot % 2;
  }
  /// Index in device memory of word `i` of a side's codes.
  template <bool kKeys>
  __device__ static int32_t page_word(CodeType kind, int32_t head_dim, int32_t i) {
    return 4 * (kKeys ? key_chunk(kind, i / 4) : value_chunk(kind, head_dim, i / 4)) + i % 4;
  }
  __device__ int32_t value_half(int32_t slot, int32_t channel) const {
    return 2 * (slot / 2 * layout_.lanes() + channel) + slot % 2;
  }

  /// First element of the page's new token `i`.
  __device__ int64_t row_of(const HeadStrides& strides, int32_t i) const {
    return (w_.token_begin + i) * strides.token + w_.head * strides.head;
  }
  __device__ int32_t token_position(int32_t i) const {
    return w_.token_position >= 0 ? w_.token_position + i : a_.positions[~w_.token_position + i];
  }

  __device__ void fill_angles() {
    // Copies of pages have no tokens, and RoPE of any layer.
    const int32_t pairs = w_.token_count > 0 ? a_.rope.rotary_dim / 2 : 0;
    for (int32_t i = thread_; i < pairs; i += threads_) inv_freq_[i] = a_.rope.inv_freq[i];
    __syncthreads();
    auto* angles = reinterpret_cast<float2*>(scratch_);
    for (int32_t i = thread_; i < w_.token_count * pairs; i += threads_) {
      angles[i] = cos_sin(static_cast<double>(token_position(i / pairs)) * static_cast<double>(inv_freq_[i % pairs]));
    }
  }

  __device__ void load_kept() {
    const auto* source = reinterpret_cast<const uint32_t*>(w_.source);
    const int32_t filled = w_.kept + w_.token_count;
    const auto key_slot = [](int32_t i) { return i % kSlots; };
    for_each_word(
        channels<true>() / 2 * kSlots,
        [&](int32_t i) { return key_slot(i) < w_.kept ? source[page_word<true>(CodeType::float16(), 0, i)] : 0U; },
        [&](int32_t i, uint32_t word) {
          const int32_t slot = key_slot(i);
          if (slot < w_.kept || slot >= filled) key_words_[i / kSlots * (kSlots + 1) + slot] = word;
        });
    const auto* values = source + side_places(Side::kKeys, CodeType::float16(), channels<true>()).bytes / 4;
    const auto value_slot = [&](int32_t i) { return i / layout_.lanes() * 2; };
    for_each_word(
        layout_.value_words(),
        [&](int32_t i) {
          return value_slot(i) < w_.kept ? values[page_word<false>(CodeType::float16(), channels<false>(), i)] : 0U;
        },
        [&](int32_t i, uint32_t word) { value_words_[i] = value_slot(i) + 1 < w_.kept ? word : word & 0xFFFFU; });
  }

  /// Loads words i < n and stores them, with several loads in flight: a store might change what a later load reads, for
  /// all that the compiler knows.
  template <typename Load, typename Store>
  __device__ void for_each_word(int32_t n, const Load& load, const Store& store) const {
    constexpr int32_t kAtOnce = 4;
#pragma unroll 1
    for (int32_t first = thread_; first < n; first += kAtOnce * threads_) {
      uint32_t words[kAtOnce];
#pragma unroll
      for (int32_t k = 0; k < kAtOnce; ++k) words[k] = first + k * threads_ < n ? load(first + k * threads_) : 0U;
#pragma unroll
      for (int32_t k = 0; k < kAtOnce; ++k) {
        if (first + k * threads_ < n) store(first + k * threads_, words[k]);
      }
    }
  }

  /// Converts to FP16 with saturation.
  __device__ __half convert(float value) {
    if (!(fabsf(value) <= kMaxHalf)) {
      *a_.status = 1;
      value = value != value ? 0.0F : copysignf(kMaxHalf, value);
    }
    return __float2half_rn(value);
  }

  __device__ void write_tokens(bool in_place) {
    auto* keys = in_place ? reinterpret_cast<uint32_t*>(w_.target) : key_words_;
    auto* values = in_place ? reinterpret_cast<__half*>(w_.target) +
                                  side_places(Side::kKeys, CodeType::float16(), channels<true>()).bytes / 2
                            : reinterpret_cast<__half*>(value_words_);
    const int32_t eighths = layout_.head.largest() / 8;
    for (int32_t i = thread_; i < w_.token_count * eighths; i += threads_) {
      const int32_t token = i / eighths;
      const int32_t channel = i % eighths * 8;
      const int32_t slot = w_.kept + token;
      const bool has_key = has_channel<true>(channel);
      const bool has_value = has_channel<false>(channel);
      const int64_t key_row = row_of(a_.k_strides, token);
      float key[8];
      float value[8];
      if (has_key) read_eight(a_.k, a_.dtype, a_.vectors != 0, key_row + channel, key);
      if (has_value) read_eight(a_.v, a_.dtype, a_.vectors != 0, row_of(a_.v_strides, token) + channel, value);
      if (has_key && rotates_of_eight(channel)) rotate_eight(key_row, token, channel, key);
      if (const LayerScales scales = a_.target_of(w_).view.scales) {
        if (has_key) scale_eight<true>(scales, w_.head, layout_.head, channel, key);
        if (has_value) scale_eight<false>(scales, w_.head, layout_.head, channel, value);
      }
      if (has_key) {
#pragma unroll
        for (int32_t e = 0; e < 8; e += 2) {
          const __half2 pair{convert(key[e]), convert(key[e + 1])};
          const int32_t word = in_place ? page_key_half(slot, channel + e) / 2 : key_half(slot, channel + e) / 2;
          keys[word] = *reinterpret_cast<const uint32_t*>(&pair);
        }
      }
      if (has_value) {
#pragma unroll
        for (int32_t e = 0; e < 8; ++e) {
          values[in_place ? page_value_half(slot, channel + e) : value_half(slot, channel + e)] = convert(value[e]);
        }
      }
    }
    // Zero the lanes that pad a value row.
    if (in_place || layout_.lanes() == channels<false>()) return;
    const int32_t padding = layout_.lanes() - channels<false>();
    for (int32_t i = thread_; i < kSlots / 2 * padding; i += threads_) {
      value_words_[i / padding * layout_.lanes() + channels<false>() + i % padding] = 0;
    }
  }

  /// Whether RoPE covers some of channels [channel, channel + 8).
  __device__ bool rotates_of_eight(int32_t channel) const {
    return channel < rotary_begin() + a_.rope.rotary_dim && (kEqual || channel + 8 > rotary_begin());
  }

  /// Rotates those channels of [channel, channel + 8) of a token that RoPE covers.
  __device__ void rotate_eight(int64_t row, int32_t token, int32_t channel, float (&key)[8]) const {
    const auto* angles = reinterpret_cast<const float2*>(scratch_) + token * (a_.rope.rotary_dim / 2);
    const int32_t half = a_.rope.rotary_dim / 2;
    row += rotary_begin();
    channel -= rotary_begin();
    const auto is_rotated = [&](int32_t at) { return at < a_.rope.rotary_dim && (kEqual || at >= 0); };
    float other[8];
    if (a_.rope.half() && half % 8 == 0 && (kEqual || channel % 8 == 0)) {
      read_eight(a_.k, a_.dtype, a_.vectors != 0, row + a_.rope.partner_of(channel), other);
    } else {
#pragma unroll
      for (int32_t e = 0; e < 8; ++e) {
        other[e] = is_rotated(channel + e) ? read_float(a_.k, a_.dtype, row + a_.rope.partner_of(channel + e)) : 0.0F;
      }
    }
#pragma unroll
    for (int32_t e = 0; e < 8; ++e) {
      const int32_t at = channel + e;
      if (!is_rotated(at)) continue;
      const int32_t pair = a_.rope.half() ? (at < half ? at : at - half) : at / 2;
      const float2 rotation = angles[pair];
      const bool first = a_.rope.half() ? at < half : at % 2 == 0;
      key[e] = first ? key[e] * rotation.x - other[e] * rotation.y : other[e] * rotation.y + key[e] * rotation.x;
    }
  }

  template <bool kKeys>
  __device__ void write_side(FormatCode format, const PagePlaces& page, const SidePlaces& bytes, uint8_t* target) {
    const CodeType kind = format.code(kKeys);
    const bool hadamard = kKeys ? format.hadamard_keys() : format.hadamard_values();
    const int32_t group_shift = kKeys ? 0 : format.group_shift();
    if constexpr (kCodes != PageCodes::kPlain) {
      if (kind.has_gains()) return write_gains<kKeys>(format, page, target);
    }
    if (kind.is_float16()) {
      auto* words = reinterpret_cast<uint32_t*>(target);
      const int32_t n = bytes.codes / 4;
      for (int32_t i = thread_; i < n; i += threads_) {
        words[page_word<kKeys>(kind, channels<kKeys>(), i)] =
            kKeys ? key_words_[i / kSlots * (kSlots + 1) + i % kSlots] : value_words_[i];
      }
      for (int32_t i = n + thread_; i < bytes.bytes / 4; i += threads_) words[i] = 0;
      return;
    }
    load_floats<kKeys>(hadamard);
    __syncthreads();
    const int32_t bits = kind.bits;
    choose_scales<kKeys>(bits, group_shift, bytes, target);
    __syncthreads();
    auto* words = reinterpret_cast<uint32_t*>(target);
    if (bits == 3) {
      write_codes<kKeys>(words, kind, 0, 2, 3, 0, group_shift);
      const int32_t low_rows = ((kKeys ? channels<true>() : kSlots) + 15) / 16;
      write_codes<kKeys>(words, kind, low_rows * (kKeys ? kSlots : layout_.lanes()), 1, 3, 2, group_shift);
    } else {
      write_codes<kKeys>(words, kind, 0, bits, bits, 0, group_shift);
    }
    auto* halves = reinterpret_cast<uint16_t*>(target);
    for (int32_t i = (bytes.codes + 2 * bytes.scales) / 2 + thread_; i < bytes.bytes / 2; i += threads_) halves[i] = 0;
  }

  template <bool kKeys>
  __device__ static bool is_centred(FormatCode format) {
    return kCodes == PageCodes::kCentred && (kKeys ? format.centred_keys() : format.centred_values());
  }

  // One call site serves both bases of codes: the inlined code is large.
  template <bool kKeys>
  __device__ void write_gains(FormatCode format, const PagePlaces& page, uint8_t* target) {
    const bool centred = is_centred<kKeys>(format);
    const int32_t used = w_.kept + w_.token_count;
    load_floats<kKeys>(!centred);
    __syncthreads();
    CentreTaker<kKeys> centres(a_, w_, scratch_, shared_ + layout_.centre_begin());
    if (centred) {
      centres.take(used);
      rotate_floats<kKeys>();
      __syncthreads();
    }
    // Codes replace the side in FP16, which is no longer needed.
    auto* codes = reinterpret_cast<uint16_t*>(kKeys ? key_words_ : value_words_);
    GainWriter<kKeys, !kScalar128>(kKeys ? format.keys() : format.values(), page, layout_.gains(channels<kKeys>()),
                                   used, scratch_, codes, shared_ + layout_.gain_begin(), target)
        .run(format);
    if (centred) centres.write(page, target);
  }

  /// Loads one side as floats, rotated if `hadamard`.
  template <bool kKeys>
  __device__ void load_floats(bool hadamard) {
    const auto* halves = reinterpret_cast<const __half*>(kKeys ? key_words_ : value_words_);
    const int32_t lane = thread_ % 32;
    for (int32_t slot = thread_ / 32; slot < kSlots; slot += threads_ / 32) {
      float* row = scratch_ + slot * row_floats<kKeys>();
      float x[kShare];
#pragma unroll
      for (int32_t k = 0; k < kShare; ++k) {
        const int32_t channel = 32 * k + lane;
        x[k] = channel < channels<kKeys>()
                   ? __half2float(halves[kKeys ? key_half(slot, channel) : value_half(slot, channel)])
                   : 0.0F;
      }
      if (hadamard) rotate<kKeys>(x, lane, row);
#pragma unroll
      for (int32_t k = 0; k < kShare; ++k) {
        const int32_t channel = 32 * k + lane;
        if (channel >= channels<kKeys>()) continue;
        row[channel] = x[k];
        if (hadamard && fabsf(x[k]) > kMaxHalf) *a_.status = 1;
      }
    }
  }

  /// Rotates the floats in place.
  template <bool kKeys>
  __device__ void rotate_floats() {
    const int32_t lane = thread_ % 32;
    for (int32_t slot = thread_ / 32; slot < kSlots; slot += threads_ / 32) {
      float* row = scratch_ + slot * row_floats<kKeys>();
      float x[kShare];
#pragma unroll
      for (int32_t k = 0; k < kShare; ++k) {
        x[k] = 32 * k + lane < channels<kKeys>() ? row[32 * k + lane] : 0.0F;
      }
      rotate<kKeys>(x, lane, row);
#pragma unroll
      for (int32_t k = 0; k < kShare; ++k) {
        if (32 * k + lane >= channels<kKeys>()) continue;
        row[32 * k + lane] = x[k];
        if (fabsf(x[k]) > kMaxHalf) *a_.status = 1;
      }
    }
  }

  /// Rotates a row of which lanes hold every 32nd channel; `row`: its memory.
  template <bool kKeys>
  __device__ void rotate(float (&x)[kShare], int32_t lane, float* row) const {
    const BlockMix mix(channels<kKeys>());
    const int32_t block = mix.width();
    const float norm = 1.0F / sqrtf(static_cast<float>(block));
    for (int32_t d = 1; d < min(block, 32); d *= 2) {
#pragma unroll
      for (float& each : x) {
        const float other = __shfl_xor_sync(kAll, each, d);
        each = (lane & d) != 0 ? other - each : each + other;
      }
    }
#pragma unroll
    for (int32_t d = 1; d < kShare; d *= 2) {
      if (32 * d >= block) break;
#pragma unroll
      for (int32_t k = 0; k < kShare; ++k) {
        if ((k & d) != 0 || k + d >= kShare) continue;
        const float sum = x[k] + x[k + d];
        x[k + d] = x[k] - x[k + d];
        x[k] = sum;
      }
    }
#pragma unroll
    for (float& each : x) each *= norm;
    if (!mix.mixes()) return;
#pragma unroll
    for (int32_t k = 0; k < kShare; ++k) {
      if (32 * k + lane < channels<kKeys>()) row[32 * k + lane] = x[k];
    }
    __syncwarp();
#pragma unroll
    for (int32_t k = 0; k < kShare; ++k) {
      if (32 * k + lane < channels<kKeys>()) x[k] = mix.channel(row, 32 * k + lane);
    }
    __syncwarp();
  }

  /// Computes a scale per channel of keys, or per slot and channel group of values.
  template <bool kKeys>
  __device__ void choose_scales(int32_t bits, int32_t group_shift, const SidePlaces& bytes, uint8_t* target) {
    auto* scales = reinterpret_cast<__half*>(target + bytes.codes);
    auto* minima = reinterpret_cast<__half*>(target + bytes.minima());
    const int32_t group = 32 << group_shift;
    for (int32_t i = thread_; i < bytes.scales / 2; i += threads_) {
      const int32_t begin = kKeys ? i : i % kSlots * row_floats<kKeys>() + i / kSlots * group;
      const int32_t step = kKeys ? row_floats<kKeys>() : 1;
      const int32_t n = kKeys ? kSlots : min(group, channels<kKeys>() - i / kSlots * group);
      float low = scratch_[begin];
      float high = low;
      for (int32_t j = 1; j < n; ++j) {
        const float value = scratch_[begin + j * step];
        low = fminf(low, value);
        high = fmaxf(high, value);
      }
      const Quantizer quantizer(low, high, bits);
      scales[scale_place(i)] = quantizer.scale;
      minima[scale_place(i)] = quantizer.minimum;
      minima_[i] = __half2float(quantizer.minimum);
      inverse_scales_[i] = quantizer.inverse_scale;
    }
  }

  /// Writes bits [first_bit, first_bit + field_bits) of codes of `bits` bits as a plane of words that begins at
  /// `first_word`.
  template <bool kKeys>
  __device__ void write_codes(uint32_t* words, CodeType kind, int32_t first_word, int32_t field_bits, int32_t bits,
                              int32_t first_bit, int32_t group_shift) const {
    const int32_t lanes = kKeys ? kSlots : layout_.lanes();
    const int32_t reduction = kKeys ? channels<true>() : kSlots;
    const int32_t per_word = 32 / field_bits;
    const auto top = static_cast<float>((1 << bits) - 1);
    const int32_t n = (reduction + per_word - 1) / per_word * lanes;
    for (int32_t i = thread_; i < n; i += threads_) {
      const int32_t lane = i % lanes;
      const int32_t first = i / lanes * per_word;
      uint32_t word = 0;
      for (int32_t e = 0; e < per_word; ++e) {
        const int32_t slot = kKeys ? lane : first + e;
        const int32_t channel = kKeys ? first + e : lane;
        if (channel >= channels<kKeys>()) break;
        const int32_t scale = kKeys ? channel : (channel >> (5 + group_shift)) * kSlots + slot;
        const float value = scratch_[slot * row_floats<kKeys>() + channel];
        const float steps = fminf(fmaxf((value - minima_[scale]) * inverse_scales_[scale], 0.0F), top);
        const auto code = static_cast<uint32_t>(steps + 0.5F);
        word |= ((code >> first_bit) & ((1U << field_bits) - 1U)) << (8 * (e % 4) + field_bits * (e / 4));
      }
      words[page_word<kKeys>(kind, channels<kKeys>(), first_word + i)] = word;
    }
  }

  const AppendArguments& a_;
  const DeviceWrite w_;
  const Layout layout_;
  const int32_t thread_;
  const int32_t threads_;
  uint32_t* shared_;
  uint32_t* key_words_;
  uint32_t* value_words_;
  float* scratch_;
  float* minima_;
  float* inverse_scales_;
  float* inv_freq_;
};

}  // namespace kvq::cuda
