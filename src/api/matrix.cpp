#include "api/strides.h"
#include "api/trained.h"
#include "core/checks.h"
#include "core/tensor.h"
#include "core/text.h"
#include "io/matrix_file.h"
#include "weights/quantize.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>

using namespace kvq;
using namespace kvq::api;

namespace {

void require_dtype(kvq_dtype dtype, const char* argument) {
  if (!is_dtype(dtype)) fail(KVQ_E_ARGUMENT, "%s is %d, must be KVQ_F32, KVQ_F16 or KVQ_BF16", argument, dtype);
}

weights::Scheme require_scheme(const char* name, const char* argument) {
  require(name, argument);
  const std::optional<weights::Scheme> scheme = weights::parse_scheme(name);
  if (scheme.has_value()) return *scheme;
  fail(KVQ_E_ARGUMENT,
       "%s is \"%s\", must be fp16 or a family and bits: nuq-1, 2, 3, 4, 5, 6 or 8; vq- or tcx-1.5, 2, "
       "2.5, ... 5; tcq-1.5, 1.75, 2, ... 5",
       argument, Quoted(name).c_str());
}

weights::MatrixShape require_shape(const weights::Scheme& scheme, int64_t rows, int64_t columns, bool has_bias) {
  require_range(rows, 1, weights::kMostRows, "rows");
  require_range(columns, weights::kInputMultiple, weights::kMostColumns, "columns");
  if (columns % weights::kInputMultiple != 0) {
    fail(KVQ_E_ARGUMENT, "columns is %lld, must be a multiple of %d", static_cast<long long>(columns),
         weights::kInputMultiple);
  }
  return {scheme, static_cast<int32_t>(rows), static_cast<int32_t>(columns), has_bias};
}

qp_quantize_options default_quantize_options() {
  qp_quantize_options options{};
  options.dtype = KVQ_F32;
  options.scheme = "nuq-4";
  options.seed = 1;
  options.rounding = QP_ROUNDING_LDLQ;
  options.damping = 0.01;
  return options;
}

weights::QuantizeOptions checked(const qp_quantize_options& options) {
  require_dtype(options.dtype, "options->dtype");
  require_range(options.rounding, QP_ROUNDING_LDLQ, QP_ROUNDING_NEAREST, "options->rounding");
  require_range(options.reserved, 0, 0, "options->reserved");
  require_within(options.damping, 0.0, 1.0, "options->damping");
  return {.scheme = require_scheme(options.scheme, "options->scheme"),
          .seed = options.seed,
          .hessian = options.hessian,
          .feed_back = options.rounding == QP_ROUNDING_LDLQ,
          .damping = options.damping,
          .bias = options.bias};
}

/// The matrix in host memory, read back to `copy` if necessary.
const weights::Matrix& read(const qp_matrix& matrix, std::optional<weights::Matrix>& copy) {
  const auto linear = matrix.context->backend->linear();
  if (linear) return linear->read(*matrix.resident, copy);
  return static_cast<const HostMatrix&>(*matrix.resident).matrix;
}

/// Throw unless one call can multiply by all matrices.
void require_shared_inputs(const qp_matrix* const* matrices, int32_t n) {
  const qp_matrix& first = *matrices[0];
  const qp_matrix* rotated = nullptr;
  for (int32_t i = 0; i < n; ++i) {
    const qp_matrix& each = *matrices[i];
    if (&*each.context != &*first.context) fail(KVQ_E_MISMATCH, "matrices[%d] and matrices[0] are of two contexts", i);
    if (each.info.in != first.info.in) {
      fail(KVQ_E_MISMATCH, "matrices[%d] has %d inputs, matrices[0] has %d", i, each.info.in, first.info.in);
    }
    if (each.info.signs.empty()) continue;
    if (rotated != nullptr && rotated->info.signs != each.info.signs) {
      fail(KVQ_E_MISMATCH, "matrices[%d] rotates its inputs differently: quantize with the same seed", i);
    }
    rotated = &each;
  }
}

/// Throw unless a call of linear layers has matching matrices.
void require_matrices(const qp_matrix* const* matrices, int32_t n, int32_t batch) {
  require(matrices, "matrices");
  require_range(n, 1, kMostSharedMatrices, "n");
  require_range(batch, 1, INT32_MAX, "batch");
  for (int32_t i = 0; i < n; ++i) require_entry(matrices[i], "matrices", i);
  require_shared_inputs(matrices, n);
}

/// Matrices in their backend forms.
class Residents {
 public:
  Residents(const qp_matrix* const* matrices, int32_t n) : n_(static_cast<size_t>(n)) {
    for (size_t i = 0; i < n_; ++i) all_[i] = matrices[i]->resident.get();
  }

  operator std::span<const Resident* const>() const { return {all_.data(), n_}; }

 private:
  std::array<const Resident*, kMostSharedMatrices> all_;
  size_t n_;
};

/// Backend form of a matrix, or a host copy for a backend without linear layers.
Owned<Resident> make_resident(kvq_context& context, weights::Matrix&& matrix) {
  const auto linear = context.backend->linear();
  if (linear) return linear->make_resident(context.allocator, std::move(matrix));
  return make_owned<HostMatrix>(context.allocator, std::move(matrix));
}

}  // namespace

qp_matrix::qp_matrix(kvq_context& owner, weights::Matrix&& matrix)
    : context(owner), info(matrix), resident(make_resident(owner, std::move(matrix))) {}

int32_t qp_scheme_count(void) { return static_cast<int32_t>(weights::kSchemes.size()); }

const char* qp_scheme_name(int32_t index) {
  using Name = std::array<char, weights::kSchemeNameSize>;
  static const auto names = [] {
    std::array<Name, weights::kSchemeCount> list;
    std::transform(weights::kSchemes.begin(), weights::kSchemes.end(), list.begin(), weights::scheme_name);
    return list;
  }();
  if (index < 0 || index >= qp_scheme_count()) return nullptr;
  return names[static_cast<size_t>(index)].data();
}

double qp_scheme_bits(const char* name) {
  if (name == nullptr) return 0.0;
  const std::optional<weights::Scheme> scheme = weights::parse_scheme(name);
  return scheme.has_value() ? scheme->bits() : 0.0;
}

void qp_quantize_options_init(qp_quantize_options* options, size_t size) {
  init_struct(options, size, default_quantize_options());
}

kvq_status qp_quantize(kvq_context* context, const qp_quantize_options* options, const void* w, int64_t rows,
                       int64_t columns, qp_matrix** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    const qp_quantize_options chosen = read_struct(options, default_quantize_options(), "options");
    require(w, "w");
    require(result, "result");
    const weights::QuantizeOptions quantizing = checked(chosen);
    const weights::MatrixShape shape = require_shape(quantizing.scheme, rows, columns, quantizing.bias != nullptr);
    require_countable({"w", rows, 1, shape.in, chosen.dtype});
    if (chosen.hessian != nullptr) require_countable({"options->hessian", columns, 1, shape.in, KVQ_F32});
    const auto device = context->backend->quantizing();
    const weights::Quantizers by{context->parallel, device ? &*device : nullptr};
    return make_owned<qp_matrix>(context->allocator, *context,
                                 weights::quantize(context->allocator, by, quantizing, w, chosen.dtype, shape.out,
                                                   shape.in, {chosen.progress, chosen.progress_user}));
  });
}

kvq_status qp_matrix_dequantize(const qp_matrix* matrix, int64_t first_row, int64_t rows, float* w, kvq_error* error) {
  return guarded(error, [&] {
    require(matrix, "matrix");
    require_range(first_row, 0, matrix->info.out, "first_row");
    require_range(rows, 0, matrix->info.out - first_row, "rows");
    require(w, "w");
    std::optional<weights::Matrix> copy;
    weights::dequantize_rows(read(*matrix, copy), static_cast<int32_t>(first_row), static_cast<int32_t>(rows),
                             {w, size(rows, matrix->info.in)});
  });
}

kvq_status qp_linear(const qp_matrix* matrix, const void* x, int32_t batch, void* y, kvq_dtype dtype,
                     kvq_error* error) {
  if (matrix == nullptr) {
    return guarded(error, [&] { require(matrix, "matrix"); });
  }
  return qp_linear_shared(&matrix, 1, x, batch, &y, dtype, error);
}

kvq_status qp_linear_shared(const qp_matrix* const* matrices, int32_t n, const void* x, int32_t batch, void* const* y,
                            kvq_dtype dtype, kvq_error* error) {
  return guarded(error, [&] {
    require_matrices(matrices, n, batch);
    require_dtype(dtype, "dtype");
    require(x, "x");
    require(y, "y");
    for (int32_t i = 0; i < n; ++i) require_entry(y[i], "y", i);
    const auto extent = [batch, dtype](const char* name, const void* begin, int32_t dim) {
      require_countable({name, batch, 1, dim, dtype});
      return Extent{name, begin, size(batch, dim, dtype_bytes(dtype))};
    };
    const Extent of_x = extent("x", x, matrices[0]->info.in);
    for (int32_t i = 0; i < n; ++i) {
      char name[16];
      std::snprintf(name, sizeof(name), "y[%d]", i);
      require_apart(extent(name, y[i], matrices[i]->info.out), of_x);
    }
    Linear& linear = matrices[0]->context->backend->linear().require();
    linear.multiply(
        {.matrices = Residents(matrices, n), .x = x, .x_dtype = dtype, .batch = batch, .y = y, .y_dtype = dtype});
  });
}

kvq_status qp_tune(const qp_matrix* const* matrices, int32_t n, int32_t batch, kvq_error* error) {
  return guarded(error, [&] {
    require_matrices(matrices, n, batch);
    kvq_context& context = *matrices[0]->context;
    context.backend->tuning().require().tune(context.allocator, Residents(matrices, n), batch);
  });
}

kvq_status qp_tuning_save(kvq_context* context, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    require(size, "size");
    hand_over(context->backend->tuning().require().save(), buffer, capacity, *size);
  });
}

kvq_status qp_tuning_load(kvq_context* context, const char* text, size_t length, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    require(text, "text");
    context->backend->tuning().require().load({text, length});
  });
}

kvq_status qp_matrix_describe(const qp_matrix* matrix, qp_matrix_info* info, kvq_error* error) {
  return described(matrix, "matrix", info, error, [](const qp_matrix& handle) {
    const weights::MatrixInfo& of = handle.info;
    qp_matrix_info found{};
    found.has_bias = of.has_bias ? 1 : 0;
    found.rows = of.out;
    found.columns = of.in;
    found.bytes = of.bytes;
    found.bits = of.bits;
    found.error = of.error;
    found.proxy_error = of.proxy_error;
    found.scheme = qp_scheme_name(weights::index_of(of.scheme));
    return found;
  });
}

kvq_status qp_matrix_predict_bytes(const char* scheme, int64_t rows, int64_t columns, int32_t has_bias, uint64_t* bytes,
                                   uint64_t* allocated, kvq_error* error) {
  return guarded(error, [&] {
    const weights::Scheme named = require_scheme(scheme, "scheme");
    require_range(has_bias, 0, 1, "has_bias");
    const weights::MatrixShape shape = require_shape(named, rows, columns, has_bias == 1);
    require(bytes, "bytes");
    *bytes = shape.bytes();
    if (allocated != nullptr) *allocated = qp_matrix::allocated_bytes(shape);
  });
}

kvq_status qp_matrix_save(const qp_matrix* const* matrices, const char* const* names, int32_t n, void* buffer,
                          size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(matrices, "matrices");
    require(names, "names");
    require_range(n, 1, INT32_MAX, "n");
    require(size, "size");
    for (int32_t i = 0; i < n; ++i) {
      require_entry(matrices[i], "matrices", i);
      require_entry(names[i], "names", i);
      for (int32_t j = 0; j < i; ++j) {
        if (std::strcmp(names[i], names[j]) != 0) continue;
        fail(KVQ_E_ARGUMENT, "the name '%s' occurs twice", Quoted(names[i]).c_str());
      }
    }
    io::SafetensorsWriter file(matrices[0]->context->allocator);
    io::begin_matrix_file(file);
    Vector<std::optional<weights::Matrix>> copies(  // until the file has been written
        static_cast<size_t>(n), matrices[0]->context->allocator);
    for (int32_t i = 0; i < n; ++i) {
      io::add_matrix(file, names[i], read(*matrices[i], copies[static_cast<size_t>(i)]));
    }
    file.finish();
    hand_over(file, buffer, capacity, *size);
  });
}

kvq_status qp_matrix_load(kvq_context* context, const void* buffer, size_t size, const char* name, qp_matrix** result,
                          kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    require(buffer, "buffer");
    require(name, "name");
    require(result, "result");
    const std::span bytes{static_cast<const std::byte*>(buffer), size};
    return make_owned<qp_matrix>(context->allocator, *context, io::read_matrix(context->allocator, bytes, name));
  });
}

void qp_matrix_destroy(qp_matrix* matrix) { destroy(matrix); }
