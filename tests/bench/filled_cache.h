// A cache with one sequence of a given length, in the shape of an 8B Llama's layer: 32 query heads, 8 KV heads of 128.
#pragma once

#include "support/handles.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

inline constexpr int32_t kQHeads = 32;
inline constexpr int32_t kKvHeads = 8;
inline constexpr int32_t kHeadDim = 128;
inline constexpr size_t kTokenScalars = size_t{kKvHeads} * kHeadDim;
inline constexpr size_t kQueryScalars = size_t{kQHeads} * kHeadDim;

const std::vector<float>& random_tensor(size_t n);

class FilledCache {
 public:
  FilledCache(const std::string& policy, int32_t length, int32_t n_threads);

  void append(int32_t n, const std::vector<float>& tokens);
  void truncate(int32_t length) { sequence_.truncate(length); }
  void attend();  // one query of the newest token
  double bits_per_scalar() const { return sequence_.usage().bits_per_scalar; }
  double stored_bytes() const;
  kvq_cache* cache() const { return cache_; }

 private:
  kvq_test::Context context_;
  kvq_test::Cache cache_ = nullptr;
  kvq_test::Sequence sequence_ = nullptr;
  std::vector<float> out_;
};

}  // namespace bench
