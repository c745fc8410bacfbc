#pragma once

#include "backend/training.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// Training on the threads of a context.
class HostTraining final : public Training {
 public:
  explicit HostTraining(Parallel& parallel) : parallel_(parallel) {}

  Owned<KeySample> make_key_sample(Allocator& allocator, const KeyVectors& keys) override;
  Owned<ValueSample> make_value_sample(Allocator& allocator, const UnitVectors& vectors) override;
  Owned<CentreSample> make_centre_sample(Allocator& allocator, int32_t centres, const CentreVectors& vectors) override;

 private:
  Parallel& parallel_;
};

}  // namespace kvq::cpu
