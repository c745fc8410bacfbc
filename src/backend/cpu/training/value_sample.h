#pragma once

#include "backend/value_sample.h"
#include "core/memory.h"
#include "core/parallel.h"

#include <cstdint>
#include <optional>

namespace kvq::cpu {

/// Values in host memory.
class HostValueSample final : public ValueSample {
 public:
  HostValueSample(Allocator& allocator, Parallel& parallel, const UnitVectors& vectors);
  HostValueSample(Allocator& allocator, Parallel& parallel, UnitVectors&& vectors);

  double encode(const ValueCode& code) override;
  void moments(std::span<double> sums) override;
  void code_products(std::span<double> normal, std::span<double> sides) override;
  void sign_products(std::span<double> sums) override;
  Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) override;

 private:
  bool bit(size_t token, size_t n) const { return is_set(packed_.data() + token * words_, n); }

  Allocator& allocator_;
  Parallel& parallel_;
  std::optional<UnitVectors> own_;
  const UnitVectors& vectors_;
  size_t bits_ = 0;
  size_t words_ = 0;
  Vector<uint32_t> packed_;  // [tokens][words]
  Vector<float> scales_;     // [tokens]
};

}  // namespace kvq::cpu
