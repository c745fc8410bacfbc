#include "api/strides.h"

#include "core/error.h"
#include "core/sizes.h"

#include <algorithm>

namespace kvq::api {
namespace {

using Integer = long long;

/// Subtract the last offset of `count` steps of `stride` from the remaining range.
void take_offset(const CallerTensor& tensor, const char* kind, int64_t stride, int64_t count, int64_t& left) {
  if (count > 1 && stride > left / (count - 1)) {
    fail(KVQ_E_ARGUMENT, "%s_%s_stride is %lld: offsets of %lld tokens of %d heads overflow", tensor.name, kind,
         static_cast<Integer>(stride), static_cast<Integer>(tensor.tokens), tensor.heads);
  }
  if (count > 1) left -= stride * (count - 1);
}

/// Whether `inner` rows end before the next of the `outer` ones begins.
bool is_nested(int64_t head_dim, int64_t inner, int64_t inner_stride, int64_t outer, int64_t outer_stride) {
  if (inner > 1 && inner_stride < head_dim) return false;
  return outer <= 1 || outer_stride - head_dim >= (inner > 1 ? (inner - 1) * inner_stride : 0);
}

}  // namespace

void require_countable(const CallerTensor& tensor) {
  const int64_t of_token = int64_t{tensor.heads} * tensor.head_dim;
  if (tensor.tokens <= kMostNumbers / of_token) return;
  fail(KVQ_E_LIMIT, "%s has %lld rows of %lld numbers: a call takes at most %lld numbers", tensor.name,
       static_cast<Integer>(tensor.tokens), static_cast<Integer>(of_token), static_cast<Integer>(kMostNumbers));
}

HeadStrides checked_strides(const CallerTensor& tensor, int64_t token_stride, int64_t head_stride) {
  require_countable(tensor);
  const auto refuse_negative = [&tensor](const char* kind, int64_t stride) {
    if (stride >= 0) return;
    fail(KVQ_E_ARGUMENT, "%s_%s_stride is %lld, must not be negative", tensor.name, kind, static_cast<Integer>(stride));
  };
  refuse_negative("token", token_stride);
  refuse_negative("head", head_stride);
  HeadStrides strides = HeadStrides::dense(tensor.heads, tensor.head_dim);
  if (token_stride != 0) strides.token = token_stride;
  if (head_stride != 0) strides.head = head_stride;
  int64_t left = kMostNumbers - tensor.head_dim;
  take_offset(tensor, "token", strides.token, tensor.tokens, left);
  take_offset(tensor, "head", strides.head, tensor.heads, left);
  return strides;
}

void require_rows_apart(const CallerTensor& tensor, const HeadStrides& strides) {
  if (is_nested(tensor.head_dim, tensor.heads, strides.head, tensor.tokens, strides.token) ||
      is_nested(tensor.head_dim, tensor.tokens, strides.token, tensor.heads, strides.head)) {
    return;
  }
  fail(KVQ_E_ARGUMENT, "%s_token_stride is %lld and %s_head_stride %lld: %lld rows of %d heads overlap each other",
       tensor.name, static_cast<Integer>(strides.token), tensor.name, static_cast<Integer>(strides.head),
       static_cast<Integer>(tensor.tokens), tensor.heads);
}

size_t extent_bytes(const CallerTensor& tensor, const HeadStrides& strides) {
  const auto last = [](int64_t count) { return static_cast<size_t>(std::max<int64_t>(count, 1) - 1); };
  return (strides.at(last(tensor.tokens), last(tensor.heads)) + static_cast<size_t>(tensor.head_dim)) *
         dtype_bytes(tensor.dtype);
}

void require_apart(const Extent& out, const Extent& other) {
  if (out.begin == nullptr || other.begin == nullptr) return;
  const auto a = reinterpret_cast<uintptr_t>(out.begin);
  const auto b = reinterpret_cast<uintptr_t>(other.begin);
  if (a - b < other.bytes || b - a < out.bytes) {
    fail(KVQ_E_ARGUMENT, "%s at %p overlaps %s at %p", out.name, out.begin, other.name, other.begin);
  }
}

}  // namespace kvq::api
