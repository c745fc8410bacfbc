#include "api/layer_shapes.h"

#include "api/boundary.h"
#include "core/checks.h"
#include "core/error.h"
#include "core/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

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
  shape.pages_of_layer = -1;
  return shape;
}

bool reads_pages(const kvq_layer_shape& shape) { return shape.pages_of_layer >= 0; }
bool is_recurrent(const kvq_layer_shape& shape) { return shape.recurrent != 0; }
bool has_pages(const kvq_layer_shape& shape) { return !reads_pages(shape) && !is_recurrent(shape); }

bool has_layer(const kvq_layer_shape& shape, int32_t layer) {
  return layer >= shape.first_layer && layer - shape.first_layer < shape.n_layers;
}

/// The shape of a layer, or null.
const kvq_layer_shape* shape_of(std::span<const kvq_layer_shape> shapes, int32_t layer) {
  const auto found = std::ranges::find_if(shapes, [layer](const auto& shape) { return has_layer(shape, layer); });
  return found != shapes.end() ? &*found : nullptr;
}
const kvq_layer_shape* shape_of(const kvq_cache_options& options, int32_t layer) {
  return shape_of({options.shapes, static_cast<size_t>(options.n_shapes)}, layer);
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

/// Fill in what the options say, and 0 for none.
void resolve_window(const kvq_cache_options& options, kvq_layer_shape& shape) {
  if (shape.sliding_window == 0 && shape.attention_chunk == 0) {
    shape.sliding_window = options.sliding_window;
    shape.attention_chunk = options.attention_chunk;
  }
  shape.sliding_window = std::max(shape.sliding_window, 0);
  shape.attention_chunk = std::max(shape.attention_chunk, 0);
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

/// The first layer of the first such shape of layers with pages of their own; −1 without one.
template <typename Is>
int32_t find_layer(const kvq_cache_options& options, const Is& is) {
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (has_pages(options.shapes[i]) && is(options.shapes[i])) return options.shapes[i].first_layer;
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

kvq_rope pairing_of(const kvq_cache_options& options, const kvq_layer_shape& shape) {
  return shape.rope >= 0 ? shape.rope : options.rope;
}

/// Channels that RoPE rotates, if any.
int32_t rotary_dim_of(const kvq_cache_options& options, const kvq_layer_shape& shape) {
  const int32_t given = shape.rotary_dim != 0 ? shape.rotary_dim : options.rotary_dim;
  return given != 0 ? given : shape.key_dim - shape.rotary_begin;
}

void check_rope_of(const kvq_cache_options& options, const kvq_layer_shape& shape, int32_t index) {
  require_range(shape.rope, -1, KVQ_ROPE_INTERLEAVED, Entry(index, "rope"));
  require_range(shape.rotary_begin, 0, shape.key_dim - 2, Entry(index, "rotary_begin"));
  if (shape.rotary_begin % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "%s is %d, must be even", static_cast<const char*>(Entry(index, "rotary_begin")),
         shape.rotary_begin);
  }
  if (pairing_of(options, shape) == KVQ_ROPE_NONE) return;
  const int32_t given = shape.rotary_dim != 0 ? shape.rotary_dim : options.rotary_dim;
  const int32_t left = shape.key_dim - shape.rotary_begin;
  require_range(given, 0, left, Entry(index, "rotary_dim"));
  if (given % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "%s is %d, must be even", static_cast<const char*>(Entry(index, "rotary_dim")), given);
  }
  const int32_t rotary_dim = rotary_dim_of(options, shape);
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

/// Check which layers the last of some shapes is of.
void check_layers(const kvq_cache_options& options, std::span<const kvq_layer_shape> shapes) {
  const auto index = static_cast<int32_t>(shapes.size()) - 1;
  const kvq_layer_shape& shape = shapes.back();
  require_range(shape.first_layer, 0, options.n_layers - 1, Entry(index, "first_layer"));
  require_range(shape.n_layers, 1, options.n_layers - shape.first_layer, Entry(index, "n_layers"));
  for (int32_t i = 0; i < index; ++i) {
    const kvq_layer_shape& other = shapes[static_cast<size_t>(i)];
    if (!has_layer(other, shape.first_layer) && !has_layer(shape, other.first_layer)) continue;
    fail(KVQ_E_ARGUMENT, "options->shapes[%d] has layers of options->shapes[%d]", index, i);
  }
  if (shape.pages_of_layer < -1 || shape.pages_of_layer >= shape.first_layer) {
    fail(KVQ_E_ARGUMENT, "%s is %d, must be a layer before first_layer, %d, or -1",
         static_cast<const char*>(Entry(index, "pages_of_layer")), shape.pages_of_layer, shape.first_layer);
  }
  require_range(shape.recurrent, 0, 1, Entry(index, "recurrent"));
  require_window(shape.sliding_window, shape.attention_chunk, -1, Entry(index, "sliding_window"),
                 Entry(index, "attention_chunk"));
}

/// Layers without pages have nothing else that a shape could say.
void check_recurrent(const kvq_layer_shape& shape, int32_t index) {
  const kvq_layer_shape unset = default_shape();
  const auto check = [index](const char* field, auto value, auto expected) {
    if (value == expected) return;
    fail(KVQ_E_ARGUMENT, "%s is given, but recurrent layers have none", static_cast<const char*>(Entry(index, field)));
  };
  check("q_heads", shape.q_heads, unset.q_heads);
  check("kv_heads", shape.kv_heads, unset.kv_heads);
  check("key_dim", shape.key_dim, unset.key_dim);
  check("value_dim", shape.value_dim, unset.value_dim);
  check("values_are_key_prefix", shape.values_are_key_prefix, unset.values_are_key_prefix);
  check("rope", shape.rope, unset.rope);
  check("rotary_begin", shape.rotary_begin, unset.rotary_begin);
  check("rotary_dim", shape.rotary_dim, unset.rotary_dim);
  check("rope_base", shape.rope_base, unset.rope_base);
  check("inv_freq", shape.inv_freq, unset.inv_freq);
  check("scale", shape.scale, unset.scale);
  check("logit_softcap", shape.logit_softcap, unset.logit_softcap);
  check("pages_of_layer", shape.pages_of_layer, unset.pages_of_layer);
  check("sliding_window", shape.sliding_window, unset.sliding_window);
  check("attention_chunk", shape.attention_chunk, unset.attention_chunk);
}

/// Whether a layer with the window or chunk of `given` sees no further than one with those of `kept`.
bool sees_less(const kvq_layer_shape& given, const kvq_layer_shape& kept) {
  if (kept.attention_chunk > 0) return given.attention_chunk == kept.attention_chunk;
  return kept.sliding_window == 0 || (given.sliding_window > 0 && given.sliding_window <= kept.sliding_window);
}

/// Fill in the window of layers that read pages; `shape` has that of the pages' layer.
void take_window(const kvq_layer_shape& given, kvq_layer_shape& shape, int32_t index) {
  if (given.sliding_window == 0 && given.attention_chunk == 0) return;
  if (!sees_less(given, shape)) {
    fail(KVQ_E_ARGUMENT,
         "%s is %d and attention_chunk %d, but layer %d, whose pages are read, keeps a window of %d or a chunk of %d "
         "(0: everything)",
         static_cast<const char*>(Entry(index, "sliding_window")), given.sliding_window, given.attention_chunk,
         given.pages_of_layer, shape.sliding_window, shape.attention_chunk);
  }
  shape.sliding_window = std::max(given.sliding_window, 0);
  shape.attention_chunk = std::max(given.attention_chunk, 0);
}

/// Check what each layer has of its own, whichever pages it reads.
void check_queries(const kvq_layer_shape& shape, int32_t index) {
  require_query_heads(shape.q_heads, shape.kv_heads, Entry(index, "q_heads"));
  if (!std::isfinite(shape.scale)) {
    fail(KVQ_E_ARGUMENT, "%s is %g, must be finite", static_cast<const char*>(Entry(index, "scale")),
         static_cast<double>(shape.scale));
  }
  if (!(shape.logit_softcap >= 0.0F && shape.logit_softcap <= 1e30F)) {
    fail(KVQ_E_ARGUMENT, "%s is %g, must be 0 or positive and finite",
         static_cast<const char*>(Entry(index, "logit_softcap")), static_cast<double>(shape.logit_softcap));
  }
}

/// Check a shape of layers with pages of their own, and fill in its heads.
void check_shape(const kvq_cache_options& options, kvq_layer_shape& shape, int32_t index) {
  if (shape.kv_heads != 0) require_range(shape.kv_heads, 1, kMaxKvHeads, Entry(index, "kv_heads"));
  check_dim(shape.key_dim, kMaxHeadDim, Entry(index, "key_dim"));
  check_dim(shape.value_dim, kMaxValueDim, Entry(index, "value_dim"));
  resolve_heads(options, shape);
  resolve_window(options, shape);
  check_queries(shape, index);
  check_prefix(shape, index);
  check_rope_of(options, shape, index);
}

/// Complete a shape of layers that read another one's pages: all but what queries have of their own is that layer's.
void take_shape(const kvq_cache_options& options, std::span<kvq_layer_shape> shapes, int32_t index) {
  kvq_layer_shape& shape = shapes[static_cast<size_t>(index)];
  const kvq_layer_shape given = shape;
  const kvq_layer_shape* of_pages = shape_of(shapes, given.pages_of_layer);
  shape = of_pages != nullptr ? *of_pages : default_shape();
  if (is_recurrent(shape)) {
    fail(KVQ_E_ARGUMENT, "%s is %d, which is recurrent and has no pages",
         static_cast<const char*>(Entry(index, "pages_of_layer")), given.pages_of_layer);
  }
  if (reads_pages(shape)) {
    fail(KVQ_E_ARGUMENT, "%s is %d, which reads the pages of layer %d: name that one",
         static_cast<const char*>(Entry(index, "pages_of_layer")), given.pages_of_layer, shape.pages_of_layer);
  }
  resolve_heads(options, shape);
  resolve_window(options, shape);
  take_window(given, shape, index);
  const auto check = [&](int32_t value, int32_t unset, int32_t expected, const char* field) {
    if (value == unset || value == expected) return;
    fail(KVQ_E_ARGUMENT, "%s is %d, but layer %d, whose pages are read, has %d",
         static_cast<const char*>(Entry(index, field)), value, given.pages_of_layer, expected);
  };
  check(given.kv_heads, 0, shape.kv_heads, "kv_heads");
  check(given.key_dim, 0, shape.key_dim, "key_dim");
  check(given.value_dim, 0, shape.value_dim, "value_dim");
  check(given.values_are_key_prefix, 0, shape.values_are_key_prefix, "values_are_key_prefix");
  check(given.rope, -1, pairing_of(options, shape), "rope");
  check(given.rotary_begin, 0, shape.rotary_begin, "rotary_begin");
  check(given.rotary_dim, 0, rotary_dim_of(options, shape), "rotary_dim");
  const float base = shape.rope_base != 0.0F ? shape.rope_base : options.rope_base;
  if (given.rope_base != 0.0F && given.rope_base != base) {
    fail(KVQ_E_ARGUMENT, "%s is %g, but layer %d, whose pages are read, has %g",
         static_cast<const char*>(Entry(index, "rope_base")), static_cast<double>(given.rope_base),
         given.pages_of_layer, static_cast<double>(base));
  }
  if (given.inv_freq != nullptr) {
    fail(KVQ_E_ARGUMENT, "%s is given, must be NULL: layers that read the pages of layer %d have its frequencies",
         static_cast<const char*>(Entry(index, "inv_freq")), given.pages_of_layer);
  }
  shape.first_layer = given.first_layer;
  shape.n_layers = given.n_layers;
  shape.q_heads = given.q_heads != 0 ? given.q_heads : options.q_heads;
  shape.scale = given.scale;
  shape.logit_softcap = given.logit_softcap;
  shape.pages_of_layer = given.pages_of_layer;
  check_queries(shape, index);
}

}  // namespace

void require_window(int32_t sliding_window, int32_t attention_chunk, int32_t least, const char* window,
                    const char* chunk) {
  require_range(sliding_window, least, INT32_MAX, window);
  require_range(attention_chunk, least, INT32_MAX, chunk);
  if (sliding_window <= 0 || attention_chunk <= 0) return;
  fail(KVQ_E_ARGUMENT, "%s is %d and %s is %d: a layer has one of them", window, sliding_window, chunk,
       attention_chunk);
}

std::vector<kvq_layer_shape> read_shapes(const kvq_cache_options& options) {
  require_range(options.n_shapes, 0, options.n_layers, "options->n_shapes");
  if (options.n_shapes == 0) return {};
  require(options.shapes, "options->shapes");
  // The caller's structs may be smaller or larger: they lie as far apart as the first is large.
  const size_t size = require_struct(options.shapes, sizeof(uint32_t), "options->shapes");
  std::vector<kvq_layer_shape> shapes;
  int32_t recurrent = 0;
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    const auto* at = reinterpret_cast<const std::byte*>(options.shapes) + static_cast<size_t>(i) * size;
    shapes.push_back(read_struct(reinterpret_cast<const kvq_layer_shape*>(at), default_shape(), Entry(i)));
    check_layers(options, shapes);
    if (is_recurrent(shapes.back())) {
      check_recurrent(shapes.back(), i);
      recurrent += shapes.back().n_layers;
    } else if (!reads_pages(shapes.back())) {
      check_shape(options, shapes.back(), i);
    }
  }
  if (recurrent == options.n_layers) {
    fail(KVQ_E_ARGUMENT, "options->shapes makes all %d layers recurrent: a cache needs one with pages",
         options.n_layers);
  }
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (reads_pages(shapes[static_cast<size_t>(i)])) take_shape(options, shapes, i);
  }
  return shapes;
}

HeadShape head_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  if (shape == nullptr) return options.head_dim;
  return shape->values_are_key_prefix != 0 ? HeadShape::latent(shape->key_dim, shape->value_dim)
                                           : HeadShape(shape->key_dim, shape->value_dim);
}

int32_t sliding_window_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  return shape != nullptr ? shape->sliding_window : options.sliding_window;
}

int32_t attention_chunk_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  return shape != nullptr ? shape->attention_chunk : options.attention_chunk;
}

int32_t rotary_begin_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  return shape != nullptr ? shape->rotary_begin : 0;
}

int32_t rope_pairs_of(const kvq_cache_options& options, int32_t layer) {
  const kvq_layer_shape* shape = shape_of(options, layer);
  if (shape == nullptr) {
    if (options.rope == KVQ_ROPE_NONE) return 0;
    return (options.rotary_dim != 0 ? options.rotary_dim : options.head_dim) / 2;
  }
  const bool rotates = !is_recurrent(*shape) && pairing_of(options, *shape) != KVQ_ROPE_NONE;
  return rotates ? rotary_dim_of(options, *shape) / 2 : 0;
}

int32_t uneven_layer(const kvq_cache_options& options) {
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (!has_pages(options.shapes[i])) return options.shapes[i].first_layer;
  }
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
  const kvq_layer_shape* first = nullptr;  // of the layers with pages
  for (int32_t layer = 0; first == nullptr || !has_pages(*first); ++layer) first = shape_of(options, layer);
  return find_layer(options, [&](const kvq_layer_shape& shape) { return has_other_heads(shape, *first); });
}

}  // namespace kvq::api

void kvq_layer_shape_init(kvq_layer_shape* shape, size_t size) {
  kvq::api::init_struct(shape, size, kvq::api::default_shape());
}
