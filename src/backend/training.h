// Training: a backend does the work per token of a layer, trainers solve for parameters.
#pragma once

#include "backend/centre_sample.h"
#include "backend/key_sample.h"
#include "backend/value_sample.h"
#include "core/memory.h"

namespace kvq {

class Training {
 public:
  virtual ~Training() = default;
  /// `keys` must outlive the sample unchanged.
  virtual Owned<KeySample> make_key_sample(Allocator& allocator, const KeyVectors& keys) = 0;
  virtual Owned<ValueSample> make_value_sample(Allocator& allocator, const UnitVectors& vectors) = 0;
  /// The vectors may change or be filled in later; reload() must follow.
  virtual Owned<CentreSample> make_centre_sample(Allocator& allocator, int32_t centres,
                                                 const CentreVectors& vectors) = 0;
};

}  // namespace kvq
