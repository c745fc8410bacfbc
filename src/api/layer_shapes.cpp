#include "api/layer_shapes.h"

#include "api/boundary.h"
#include "core/checks.h"
#include "core/error.h"
#include "core/rope.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace kvq::api {
namespace {

/// Name of a shape, or of its field, as in messages.
class Entry {
 public:
  explicit Entry(int32_t shape) { std::snprintf(text_.data(), text_.size(), "options->shapes[%d]", shape); }
  Entry(int32_t shape, const char* field) {
    std::snprintf(text_.data(), text_.size(), "options->shapes[%d].%s", shape, field);
  }
  operator const char*() const { return text_.data(); }

 private:
  std::array<char, 64> text_{};
};

kvq_layer_shape default_shape() {
  kvq_layer_shape shape{};
  shape.n_layers = 1;
  shape.rope = -1;
  return shape;
}

bool has_layer(const kvq_layer_shape& shape, int32_t layer) {
  return layer >= shape.first_layer && layer - shape.first_layer < shape.n_layers;
}

/// The shape of a layer, or null.
const kvq_layer_shape* shape_of(const kvq_cache_options& options, int32_t layer) {
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (has_layer(options.shapes[i], layer)) return &options.shapes[i];
  }
  return nullptr;
}

/// Fill in what the options say.
void resolve_heads(const kvq_cache_options& options, kvq_layer_shape& shape) {
  const auto resolve = [](int32_t& given, int32_t usual) {
    if (given == 0) given = usual;
  };
  resolve(shape.q_heads, options.q_heads);
  resolve(shape.kv_heads, options.kv_heads);
  resolve(shape.key_dim, options.head_dim);
  resolve(shape.value_dim, options.head_dim);
}

bool has_other_heads(const kvq_layer_shape& shape, const kvq_layer_shape& usual) {
  return shape.q_heads != usual.q_heads || shape.kv_heads != usual.kv_heads || shape.key_dim != usual.key_dim ||
         shape.value_dim != usual.value_dim || shape.values_are_key_prefix != usual.values_are_key_prefix;
}

bool has_other_heads(const kvq_layer_shape& shape, const kvq_cache_options& options) {
  kvq_layer_shape usual{};
  resolve_heads(options, usual);
  return has_other_heads(shape, usual);
}

/// The first layer of the first such shape; −1 without one.
template <typename Is>
int32_t find_layer(const kvq_cache_options& options, const Is& is) {
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (is(options.shapes[i])) return options.shapes[i].first_layer;
  }
  return -1;
}

void check_dim(int32_t dim, int32_t largest, const char* field) {
  if (dim == 0) return;
  require_range(dim, 8, largest, field);
  if (dim % 8 != 0) fail(KVQ_E_ARGUMENT, "%s is %d, must be a multiple of 8", field, dim);
}

/// Values that are stored with the keys cannot be rotated.
void check_prefix(kvq_layer_shape& shape, int32_t index) {
  require_range(shape.values_are_key_prefix, 0, 1, Entry(index, "values_are_key_prefix"));
  if (shape.values_are_key_prefix == 0) return;
  if (shape.key_dim <= shape.value_dim) {
    fail(KVQ_E_ARGUMENT, "%s is 1, but keys have %d channels, which must be more than the %d of values",
         static_cast<const char*>(Entry(index, "values_are_key_prefix")), shape.key_dim, shape.value_dim);
  }
  if (shape.rotary_begin == 0) shape.rotary_begin = shape.value_dim;
  if (shape.rotary_begin >= shape.value_dim) return;
  fail(KVQ_E_ARGUMENT, "%s is %d, must be at least the %d channels of values, which are stored with the keys",
       static_cast<const char*>(Entry(index, "rotary_begin")), shape.rotary_begin, shape.value_dim);
}

void check_rope_of(const kvq_cache_options& options, const kvq_layer_shape& shape, int32_t index) {
  require_range(shape.rope, -1, KVQ_ROPE_INTERLEAVED, Entry(index, "rope"));
  require_range(shape.rotary_begin, 0, shape.key_dim - 2, Entry(index, "rotary_begin"));
  if (shape.rotary_begin % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "%s is %d, must be even", static_cast<const char*>(Entry(index, "rotary_begin")),
         shape.rotary_begin);
  }
  if ((shape.rope >= 0 ? shape.rope : options.rope) == KVQ_ROPE_NONE) return;
  const int32_t given = shape.rotary_dim != 0 ? shape.rotary_dim : options.rotary_dim;
  const int32_t left = shape.key_dim - shape.rotary_begin;
  require_range(given, 0, left, Entry(index, "rotary_dim"));
  if (given % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "%s is %d, must be even", static_cast<const char*>(Entry(index, "rotary_dim")), given);
  }
  const int32_t rotary_dim = given != 0 ? given : left;
  if (!std::isfinite(shape.rope_base) || shape.rope_base < 0.0F) {
    fail(KVQ_E_ARGUMENT, "%s is %g, must be positive and finite, or 0",
         static_cast<const char*>(Entry(index, "rope_base")), static_cast<double>(shape.rope_base));
  }
  const bool own = shape.inv_freq != nullptr || shape.rope_base != 0.0F;
  if (!own && options.inv_freq != nullptr) {
    const int32_t known = options.rotary_dim != 0 ? options.rotary_dim : options.head_dim;
    if (known == rotary_dim) return;
    fail(KVQ_E_ARGUMENT, "%s is NULL, but options->inv_freq has the frequencies of %d channels, not of %d",
         static_cast<const char*>(Entry(index, "inv_freq")), known, rotary_dim);
  }
  const float base = own ? shape.rope_base : options.rope_base;
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    const float frequency = shape.inv_freq != nullptr ? shape.inv_freq[i] : Rope::frequency(base, rotary_dim, i);
    if (std::isfinite(frequency)) continue;
    fail(KVQ_E_ARGUMENT, "%s gives pair %d the frequency %g, must be finite",
         static_cast<const char*>(Entry(index, shape.inv_freq != nullptr ? "inv_freq" : "rope_base")), i,
         static_cast<double>(frequency));
  }
}

/// Check the last of some shapes, and fill in its heads.
void check_shape(const kvq_cache_options& options, std::vector<kvq_layer_shape>& shapes) {
  const auto index = static_cast<int32_t>(shapes.size()) - 1;
  kvq_layer_shape& shape = shapes.back();
  require_range(shape.first_layer, 0, options.n_layers - 1, Entry(index, "first_layer"));
  require_range(shape.n_layers, 1, options.n_layers - shape.first_layer, Entry(index, "n_layers"));
  for (int32_t i = 0; i < index; ++i) {
    const kvq_layer_shape& other = shapes[static_cast<size_t>(i)];
    if (!has_layer(other, shape.first_layer) && !has_layer(shape, other.first_layer)) continue;
    fail(KVQ_E_ARGUMENT, "options->shapes[%d] has layers of options->shapes[%d]", index, i);
  }
  if (shape.kv_heads != 0) require_range(shape.kv_heads, 1, kMaxKvHeads, Entry(index, "kv_heads"));
  require_query_heads(shape.q_heads != 0 ? shape.q_heads : options.q_heads,
                      shape.kv_heads != 0 ? shape.kv_heads : options.kv_heads, Entry(index, "q_heads"));
  check_dim(shape.key_dim, kMaxHeadDim, Entry(index, "key_dim"));
  check_dim(shape.value_dim, kMaxValueDim, Entry(index, "value_dim"));
  resolve_heads(options, shape);
  check_prefix(shape, index);
  check_rope_of(options, shape, index);
  if (!std::isfinite(shape.scale)) {
    fail(KVQ_E_ARGUMENT, "%s is %g, must be finite", static_cast<const char*>(Entry(index, "scale")),
         static_cast<double>(shape.scale));
  }
  if (!(shape.logit_softcap >= 0.0F && shape.logit_softcap <= 1e30F)) {
    fail(KVQ_E_ARGUMENT, "%s is %g, must be 0 or positive and finite",
         static_cast<const char*>(Entry(index, "logit_softcap")), static_cast<double>(shape.logit_softcap));
  }
}

}  // namespace

std::vector<kvq_layer_shape> read_shapes(const kvq_cache_options& options) {
  require_range(options.n_shapes, 0, options.n_layers, "options->n_shapes");
  if (options.n_shapes == 0) return {};
  require(options.shapes, "options->shapes");
  // The caller's structs may be smaller or larger: they lie as far apart as the first is large.
  const size_t size = require_struct(options.shapes, sizeof(uint32_t), "options->shapes");
  std::vector<kvq_layer_shape> shapes;
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    const auto* at = reinterpret_cast<const std::byte*>(options.shapes) + static_cast<size_t>(i) * size;
    shapes.push_back(read_struct(reinterpret_cast<const kvq_layer_shape*>(at), default_shape(), Entry(i)));
    check_shape(options, shapes);
  }
  return shapes;
}

HeadShape head_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  if (shape == nullptr) return options.head_dim;
  return shape->values_are_key_prefix != 0 ? HeadShape::latent(shape->key_dim, shape->value_dim)
                                           : HeadShape(shape->key_dim, shape->value_dim);
}

int32_t rotary_begin_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  return shape != nullptr ? shape->rotary_begin : 0;
}

int32_t uneven_layer(const kvq_cache_options& options) {
  const int32_t usual_rotary_dim = options.rotary_dim != 0 ? options.rotary_dim : options.head_dim;
  return find_layer(options, [&](const kvq_layer_shape& shape) {
    return has_other_heads(shape, options) || (shape.rotary_dim != 0 && shape.rotary_dim != usual_rotary_dim) ||
           shape.rotary_begin != 0 || (shape.rope >= 0 && shape.rope != options.rope);
  });
}

int32_t layer_with_other_heads(const kvq_cache_options& options) {
  int64_t layers = 0;
  for (int32_t i = 0; i < options.n_shapes; ++i) layers += options.shapes[i].n_layers;
  if (layers < options.n_layers) {
    return find_layer(options, [&](const kvq_layer_shape& shape) { return has_other_heads(shape, options); });
  }
  return find_layer(options, [&](const kvq_layer_shape& shape) { return has_other_heads(shape, options.shapes[0]); });
}

}  // namespace kvq::api

void kvq_layer_shape_init(kvq_layer_shape* shape, size_t size) {
  kvq::api::init_struct(shape, size, kvq::api::default_shape());
}
