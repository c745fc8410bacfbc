#include "backend/cpu/training/host_training.h"

#include "backend/cpu/training/centre_sample.h"
#include "backend/cpu/training/key_sample.h"
#include "backend/cpu/training/value_sample.h"

namespace kvq::cpu {

Owned<KeySample> HostTraining::make_key_sample(Allocator& allocator, const KeyVectors& keys) {
  return make_owned<HostKeySample>(allocator, allocator, parallel_, keys);
}

Owned<ValueSample> HostTraining::make_value_sample(Allocator& allocator, const UnitVectors& vectors) {
  return make_owned<HostValueSample>(allocator, allocator, parallel_, vectors);
}

Owned<CentreSample> HostTraining::make_centre_sample(Allocator& allocator, int32_t centres,
                                                     const CentreVectors& vectors) {
  return make_owned<HostCentreSample>(allocator, allocator, parallel_, centres, vectors);
}

}  // namespace kvq::cpu
