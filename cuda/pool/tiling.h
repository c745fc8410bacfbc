// Pools' sequences with many new tokens: their pages become FP16 tiles, as in the prefill route.
#pragma once

#include "backend/block_pools.h"
#include "device/device.h"
#include "kernels/pool/plan.h"
#include "kernels/prefill/prefill.h"

namespace kvq::cuda {

/// The prefill kernel of a layer, and memory for its tiles and partials.
struct PoolTiling {
  PrefillKernel kernel;
  PoolDivision division;  // of sequences that it reads
  int32_t partials;       // blocks of rows by parts
  int32_t rounds;         // of launches

  size_t bytes_of_tiles() const { return kernel.bytes_of_tiles(division.room.tiles); }
  size_t bytes() const {
    return bytes_of_tiles() +
           static_cast<size_t>(partials) * partial_floats(kernel.block_rows, kernel.value_width) * sizeof(float);
  }
};

/// Room for calls within limits. Without rounds if no sequence has as many new tokens as make it worth while, or pages
/// are `centred`.
PoolTiling choose_tiling(const Device& device, const AttendBatch& queries, bool centred, const PoolMaxima& maxima,
                         int32_t block_pages);

/// The launches of a call on all sequences that the tiling's division reads. `memory`: PoolTiling::bytes().
struct TilingCall {
  const PoolTiling& tiling;
  const PoolStarts& starts;
  std::byte* memory;
};
/// `arguments`: for the division.
void attend_tiles(const Device& device, const Call& call, const TilingCall& of, const AttendArguments& arguments,
                  const PooledWork& work);

}  // namespace kvq::cuda
