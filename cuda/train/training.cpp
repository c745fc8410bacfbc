// Samples that trainers work on.
#include "cuda_backend.h"
#include "train/centre_sample.h"
#include "train/key_sample.h"
#include "train/value_sample.h"

namespace kvq::cuda {

Owned<KeySample> CudaBackend::make_key_sample(Allocator& allocator, const KeyVectors& keys) {
  const Call call(*this, Call::Reports::kNothing);
  return make_owned<DeviceKeySample>(allocator, *this, call, allocator, keys);
}

Owned<ValueSample> CudaBackend::make_value_sample(Allocator& allocator, const UnitVectors& vectors) {
  const Call call(*this, Call::Reports::kNothing);
  auto sample =
      make_owned<DeviceValueSample>(allocator, *this, allocator, vectors.width, vectors.tokens(), vectors.held_out);
  upload(*this, call, std::span<const float>(vectors.numbers), sample->units());
  return sample;
}

Owned<CentreSample> CudaBackend::make_centre_sample(Allocator& allocator, int32_t centres,
                                                    const CentreVectors& vectors) {
  const Call call(*this, Call::Reports::kNothing);
  return make_owned<DeviceCentreSample>(allocator, *this, allocator, centres, vectors);
}

}  // namespace kvq::cuda
