#pragma once

#include "backend/cpu/training/key_assignment.h"
#include "backend/cpu/training/key_tokens.h"
#include "backend/key_sample.h"
#include "core/memory.h"
#include "core/parallel.h"

#include <optional>

namespace kvq::cpu {

/// Keys in host memory.
class HostKeySample final : public KeySample {
 public:
  HostKeySample(Allocator& allocator, Parallel& parallel, const KeyVectors& keys);

  void restore() override;
  double energy(int32_t n) override;
  double plain_energy() override;
  void read(std::span<const int32_t> keys, float* vectors) override;
  void assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) override;
  void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n, KeyStatistics& statistics) override;
  void encode(const KeyEncoder& encoder, int32_t beam) override;
  std::span<const uint8_t> indices() override { return indices_; }
  void add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                     std::span<std::complex<double>> sides) override;

 private:
  keys::Assignment& assignment(int32_t codes);

  Allocator& allocator_;
  Parallel& parallel_;
  KeyVectors keys_;
  Vector<float> rest_;
  keys::Tokens residuals_;
  Vector<uint8_t> indices_;
  std::optional<keys::Assignment> assignment_;  // sized for the codes of the last stage
};

}  // namespace kvq::cpu
