#include "formats/commvq/commvq.h"

#include "core/checks.h"
#include "core/error.h"
#include "core/float16.h"
#include "formats/commvq/context.h"
#include "formats/commvq/value_code.h"

#include <algorithm>
#include <complex>
#include <vector>

namespace kvq::commvq {
namespace {

/// A page with codes must fit in buffers sized for one without.
void check_side_bytes(Side side, const PageFormat& format) {
  const size_t bytes = side_bytes(side, format);
  const size_t plain = side_bytes(side, {SideFormat{}, SideFormat{}, format.head});
  if (bytes <= plain) return;
  fail(KVQ_E_ARGUMENT, "options->codebook needs %zu bytes for the %s of a page, more than the %zu that FP16 needs",
       bytes, side == Side::kKeys ? "keys" : "values", plain);
}

const ModelCodebook& codebook_of(const PageFormat& format) {
  return static_cast<const ModelCodebook&>(*format.trained);
}

const CodebookShape& shape_of(const PageFormat& format) { return codebook_of(format).shape; }

void decode_keys(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCodebook& codebook = codebook_of(encoded.format);
  const CodebookShape& shape = codebook.shape;
  const LayerCodebook& numbers = *codebook.layers[static_cast<size_t>(encoded.layer)].numbers;
  const KeyLayout layout = key_layout(shape);
  const auto stages = static_cast<size_t>(layout.head_stages);
  std::vector<uint8_t> indices(kPageSlots * 2 * stages);  // [slots][groups · stages]{a, b}
  for (size_t stage = 0; stage < stages; ++stage) {
    uint8_t fields[kIndexFields];
    layout.unpack(encoded.sides[encoded.head], static_cast<int32_t>(stage), fields);
    for (size_t field = 0; field < kIndexFields; ++field) {
      indices[(field % kPageSlots * stages + stage) * 2 + field / kPageSlots] = fields[field];
    }
  }
  std::vector<float> rotation(encoded.rope->table_stride());
  for (int32_t slot = begin; slot < begin + n; ++slot, out += shape.head_dim) {
    const float norm = from_float16(layout.norms.get(encoded.sides, encoded.head, slot));
    decode_key(shape, numbers, encoded.head, indices.data() + static_cast<size_t>(slot) * 2 * stages, norm, out);
    encoded.rope->fill_table({encoded.positions + slot, 1}, rotation.data());
    encoded.rope->rotate(rotation.data(), out);
  }
}

void decode_values(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const ModelCodebook& codebook = codebook_of(encoded.format);
  const CodebookShape& shape = codebook.shape;
  const LayerCodebook& numbers = *codebook.layers[static_cast<size_t>(encoded.layer)].numbers;
  const ValueLayout layout = value_layout(shape);
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, numbers, of_layer ? 0 : encoded.head);
  std::vector<uint32_t> packed(code.words());
  std::vector<float> vector(static_cast<size_t>(code.width));
  const float* of_head = vector.data() + (of_layer ? static_cast<size_t>(encoded.head * shape.head_dim) : 0);
  for (int32_t slot = begin; slot < begin + n; ++slot, out += shape.head_dim) {
    std::fill(packed.begin(), packed.end(), 0U);
    for (int32_t bit = 0; bit < code.bits; ++bit) {
      const std::byte* side = encoded.sides[of_layer ? bit / layout.lanes : encoded.head];
      const auto* words = reinterpret_cast<const uint32_t*>(side);
      packed[static_cast<size_t>(bit) / 32] |= layout.plane().get(words, bit % layout.lanes, slot) << (bit % 32);
    }
    decode_value(code, packed.data(), from_float16(layout.scales.get(encoded.sides, encoded.head, slot)),
                 vector.data());
    std::copy_n(of_head, shape.head_dim, out);
  }
}

}  // namespace

void decode_key(const CodebookShape& shape, const LayerCodebook& layer, int32_t head, const uint8_t* indices,
                float norm, float* key) {
  using Complex = std::complex<double>;
  const int32_t stages = shape.keys.stages;
  const int32_t codes = shape.keys.codes;
  const int32_t group = shape.keys.group;
  const auto* z = reinterpret_cast<const std::complex<float>*>(layer.key_codes.data()) +
                  static_cast<size_t>(head) * shape.key_codes_of_head();
  const bool half = shape.pairing == KVQ_ROPE_HALF;
  for (int32_t pair = 0; pair < shape.pairs(); ++pair) {
    const int32_t first_stage = pair / group * stages;
    const auto code = [&](int32_t stage, int32_t index) {
      const int32_t row = (first_stage + stage) * codes + index;
      return Complex(z[static_cast<size_t>(row) * static_cast<size_t>(group) + static_cast<size_t>(pair % group)]);
    };
    Complex sum;
    for (int32_t stage = 0; stage < stages; ++stage) {
      const uint8_t* index = indices + 2 * (first_stage + stage);
      sum += code(stage, index[0]) + Complex(0.0, 1.0) * code(stage, index[1]);
    }
    key[half ? pair : 2 * pair] = static_cast<float>(double{norm} * sum.real());
    key[half ? pair + shape.pairs() : 2 * pair + 1] = static_cast<float>(double{norm} * sum.imag());
  }
}

// Without a codebook, which an application may have forgotten, pages have no bytes.
size_t bytes(Side side, const PageFormat& format) {
  if (format.trained == nullptr) return 0;
  return side == Side::kKeys ? key_layout(shape_of(format)).bytes() : value_layout(shape_of(format)).bytes();
}

bool spans_heads(Side side, const PageFormat& format) {
  if (format.trained == nullptr) return false;
  const CodebookShape& shape = shape_of(format);
  return (side == Side::kKeys ? shape.keys.norms : shape.values.scope) == Scope::kLayer && shape.kv_heads > 1;
}

void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  if (encoded.side == Side::kKeys) {
    decode_keys(encoded, begin, n, out);
  } else {
    decode_values(encoded, begin, n, out);
  }
}

bool valid(Side side, const PageFormat& format, const std::byte* data) {
  const TokenNumbers numbers =
      side == Side::kKeys ? key_layout(shape_of(format)).norms : value_layout(shape_of(format)).scales;
  const auto* first = reinterpret_cast<const uint16_t*>(data + numbers.offset);
  return std::all_of(first, first + numbers.share, is_finite_float16);
}

void check(const Trained& trained, const CacheShape& cache, const PageFormat& format) {
  const auto& codebook = static_cast<const ModelCodebook&>(trained);
  const CodebookShape& shape = codebook.shape;
  codebook.check_for(cache, "codebook");
  if (codebook.scales != cache.scales) {
    fail(KVQ_E_MISMATCH,
         "options->codebook was trained with scales %llx (0: none), but those of options->centres are %llx: train it "
         "with the scales of the cache",
         static_cast<unsigned long long>(codebook.scales), static_cast<unsigned long long>(cache.scales));
  }
  if (format.keys.code.is_commvq()) {
    if (shape.keys.stages == 0)
      fail(KVQ_E_ARGUMENT, "policy stores keys as commvq, but options->codebook has no codes for keys");
    check_trained_for("codebook", "rope", shape.pairing, cache.rope);
    if (cache.rotary_dim != 0 && cache.rotary_dim != cache.head_dim) {
      fail(KVQ_E_ARGUMENT, "options->rotary_dim is %d: keys as commvq need all %d channels rotated", cache.rotary_dim,
           cache.head_dim);
    }
  }
  if (format.values.code.is_commvq() && shape.values.bits == 0) {
    fail(KVQ_E_ARGUMENT, "policy stores values as commvq, but options->codebook has no codes for values");
  }
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (format.side(side).code.is_commvq()) check_side_bytes(side, format);
  }
}

std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& parallel,
                                              std::shared_ptr<const Trained> codebook) {
  return std::allocate_shared<const ModelCoder>(StlAllocator<ModelCoder>(allocator), allocator, parallel,
                                                std::static_pointer_cast<const ModelCodebook>(std::move(codebook)));
}

Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& format, const OptionValues& options,
                                 const RotationTable& rotations) {
  return make_owned<Context>(allocator, static_cast<const ModelCoder&>(resident).layer(layer), format, options,
                             rotations);
}

}  // namespace kvq::commvq
