#pragma once

#include "append/voting.h"
#include "attend/attend.h"
#include "backend/backend.h"
#include "evict/evict.h"
#include "linear/linear.h"
#include "pages/pages.h"
#include "pool/pools.h"
#include "quantize/quantizing.h"
#include "train/training.h"

namespace kvq::cuda {

/// One GPU and the facets on it.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const DeviceOptions& options) : device_(options) {}

  const char* name() const override { return "cuda"; }
  const char* isa() const override { return device_.isa(); }
  void set_stream(void* stream) override { device_.set_stream(static_cast<cudaStream_t>(stream)); }
  bool recording() override {
    const Call call(device_, Call::Reports::kNothing);
    return device_.is_capturing();
  }

  Pages& pages() override { return pages_; }
  Attention& attention() override { return attention_; }
  Facet<BlockPools> block_pools() override { return pools_; }
  Facet<Weighing> weighing() override { return weighing_; }
  Facet<Voting> voting() override { return voting_; }
  Facet<Linear> linear() override { return linear_; }
  Facet<Tuning> tuning() override { return tuning_; }
  Facet<Training> training() override { return training_; }
  Facet<weights::Quantizing> quantizing() override { return quantizing_; }

 private:
  Device device_;
  CudaPages pages_{device_};
  CudaAttention attention_{device_};
  CudaBlockPools pools_{device_};
  CudaWeighing weighing_{device_};
  CudaVoting voting_{device_};
  CudaLinear linear_{device_};
  CudaTuning tuning_{device_, linear_.kernels()};
  CudaTraining training_{device_};
  CudaQuantizing quantizing_{device_};
};

}  // namespace kvq::cuda
