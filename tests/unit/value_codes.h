// Shared by the tests of value codes.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/training/host_training.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/codebook.h"
#include "formats/commvq/value_encoder.h"

namespace value_codes {

using kvq::Allocator;
using kvq::CodebookShape;
using kvq::kFlipsUnlimited;
using kvq::Parallel;
using kvq::Scope;
using kvq::value_kernels;
using kvq::ValueCode;
using kvq::ValueEncoder;
using kvq::ValueKernels;

struct Machine {
  explicit Machine(int32_t threads = 1) : parallel(threads, nullptr, nullptr), backend(parallel) {}

  Allocator allocator{{}, UINT64_MAX};
  Parallel parallel;
  kvq::cpu::HostTraining backend;
};

struct Encoded {
  std::vector<uint32_t> codes;
  std::vector<uint16_t> scales;

  bool operator==(const Encoded&) const = default;
};

inline Encoded encode(Machine& machine, const ValueCode& code, const std::vector<float>& vectors,
                      int32_t max_flips = kFlipsUnlimited, const ValueKernels& kernels = *value_kernels().front()) {
  const ValueEncoder encoder(machine.allocator, machine.parallel, code, kernels);
  const auto width = static_cast<size_t>(code.width);
  const size_t n = vectors.size() / width;
  Encoded out{std::vector<uint32_t>(n * code.words()), std::vector<uint16_t>(n)};
  encoder.encode(machine.allocator, machine.parallel, vectors.data(), width, n, out.codes.data(), out.scales.data(),
                 max_flips);
  return out;
}

inline CodebookShape shape_of(int32_t kv_heads, int32_t head_dim, int32_t bits, Scope scope) {
  CodebookShape shape;
  shape.n_layers = 1;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.values = {bits, scope};
  return shape;
}

}  // namespace value_codes
