// Energies of channels by a layer's weights alone.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/gain_shape/model_centres.h"
#include "kvq.h"

namespace kvq::centres {

/// What the weights of a layer's attention say about its channels, [kv_heads][head_dim] each. Its normalized input is
/// taken as white. Empty: the projection was not given.
struct WeightEnergies {
  explicit WeightEnergies(Allocator& allocator)
      : queries(allocator),
        keys(allocator),
        values(allocator),
        outputs(allocator),
        key_offsets(allocator),
        value_offsets(allocator) {}

  Vector<double> queries;  // summed over a KV head's query heads
  Vector<double> keys;     // around their offsets
  Vector<double> values;
  Vector<double> outputs;      // of the output projection's columns, summed likewise
  Vector<double> key_offsets;  // biases
  Vector<double> value_offsets;
  bool normed = false;  // queries and keys have norms, whose weights all heads share
};

/// Throws KVQ_E_ARGUMENT naming the array for numbers that are not finite.
WeightEnergies energies_of(Allocator& allocator, Parallel& parallel, const CentresShape& shape,
                           const kvq_attention_weights& weights);

}  // namespace kvq::centres
