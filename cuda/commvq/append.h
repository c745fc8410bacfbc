#pragma once

#include "cuda_backend.h"
#include "kernels/commvq/codebook.h"

#include <span>

namespace kvq::cuda {

/// One call of append that writes pages with codes of a codebook: tokens become halves first, in pages of its own
/// unless they are in one already, and these become codes, some groups of pages after the others.
class CudaBackend::CodedAppend {
 public:
  CodedAppend(CudaBackend& backend, const Call& call, const TokenBatch& tokens, Allocator& scratch);

  /// Tables have room.
  void append(const PageWrites& writes, std::span<const AppendedLayer> layers);

 private:
  struct Work;

  void encode_some(const PageWrites& writes, std::span<const size_t> groups);

  CudaBackend& backend_;
  const Call& call_;
  const TokenBatch& tokens_;
  Allocator& scratch_;
};

}  // namespace kvq::cuda
