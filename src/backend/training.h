// Training: a backend takes over what concerns all tokens of a layer, trainers solve for the numbers.
#pragma once

#include "backend/centre_sample.h"
#include "backend/key_sample.h"
#include "backend/value_sample.h"
#include "core/memory.h"

namespace kvq {

class Training {
 public:
  virtual ~Training() = default;
  /// The numbers must outlive the samples and stay as they are.
  virtual Owned<KeySample> make_key_sample(Allocator& allocator, const KeyVectors& keys) = 0;
  virtual Owned<ValueSample> make_value_sample(Allocator& allocator, const UnitVectors& vectors) = 0;
  /// The vectors may change, or come only then, if reload() follows.
  virtual Owned<CentreSample> make_centre_sample(Allocator& allocator, int32_t centres,
                                                 const CentreVectors& vectors) = 0;
};

}  // namespace kvq
