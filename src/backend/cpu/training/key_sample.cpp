#include "backend/cpu/training/key_sample.h"

#include "backend/cpu/training/key_equations.h"

#include <algorithm>

namespace kvq::cpu {

HostKeySample::HostKeySample(Allocator& allocator, Parallel& parallel, const KeyVectors& keys)
    : allocator_(allocator),
      parallel_(parallel),
      keys_(keys),
      rest_(keys.numbers.begin(), keys.numbers.end(), allocator),
      residuals_{rest_.data(), keys.weights.empty() ? nullptr : keys.weights.data(), keys.n, keys.group},
      indices_(allocator) {}

void HostKeySample::restore() { std::copy(keys_.numbers.begin(), keys_.numbers.end(), rest_.begin()); }

double HostKeySample::energy(int32_t n) { return keys::energy(residuals_.part(0, n)); }

double HostKeySample::plain_energy() {
  keys::Tokens unweighted = residuals_;
  unweighted.weights = nullptr;
  return keys::energy(unweighted);
}

void HostKeySample::read(std::span<const int32_t> keys, float* vectors) {
  const size_t length = residuals_.vector();
  for (const int32_t key : keys) {
    vectors = std::copy_n(residuals_.vectors + static_cast<size_t>(key) * length, length, vectors);
  }
}

keys::Assignment& HostKeySample::assignment(int32_t codes) {
  if (!assignment_ || assignment_->codes() != codes) {
    assignment_.reset();
    assignment_.emplace(allocator_, parallel_, codes, keys_.group);
  }
  return *assignment_;
}

void HostKeySample::assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) {
  assignment(stage.codes()).assign_nearest(stage, residuals_, statistics);
}

void HostKeySample::assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n,
                                  KeyStatistics& statistics) {
  assignment(stage.codes()).assign_softly(stage, kernel, residuals_.part(0, n), statistics);
}

void HostKeySample::encode(const KeyEncoder& encoder, int32_t beam) {
  keys::subtract_codes(allocator_, parallel_, encoder, beam, residuals_, indices_);
}

void HostKeySample::add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                                  std::span<std::complex<double>> sides) {
  keys::add_equations(parallel_, residuals_, indices_.data(), encoder.stages(), encoder.codes(), system, sides);
}

}  // namespace kvq::cpu
