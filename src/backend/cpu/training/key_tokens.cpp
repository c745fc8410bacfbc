#include "backend/cpu/training/key_tokens.h"

#include "formats/commvq/key_kernels.h"

namespace kvq::keys {

size_t Tokens::vector() const { return vector_floats(group); }

KeyPairs Tokens::pairs() const { return {vectors, vectors + padded(group), vector(), 1}; }

Tokens Tokens::part(int32_t first, int32_t end) const {
  return {vectors + static_cast<size_t>(first) * vector(), weights == nullptr ? nullptr : weights + first, end - first,
          group};
}

Range chunk(int32_t n, int32_t i) {
  const auto bound = [n](int64_t k) { return static_cast<int32_t>(k * n / kChunks); };
  return {bound(i), bound(int64_t{i} + 1)};
}

double energy(const Tokens& tokens) {
  double sum = 0.0;
  for (int32_t t = 0; t < tokens.n; ++t) {
    const float* vector = tokens.vectors + static_cast<size_t>(t) * tokens.vector();
    double squares = 0.0;
    for (size_t j = 0; j < tokens.vector(); ++j) squares += double{vector[j]} * double{vector[j]};
    sum += double{tokens.weight(t)} * squares;
  }
  return sum;
}

void subtract_codes(Allocator& allocator, Parallel& parallel, const KeyEncoder& encoder, int32_t beam,
                    const Tokens& tokens, Vector<uint8_t>& indices) {
  const auto row = 2 * static_cast<size_t>(encoder.stages());
  const KeyKernels& run = *key_kernels().front();
  const size_t work_bytes = encoder.work_bytes();
  Vector<std::byte> work(kChunks * work_bytes, allocator);
  indices.resize(static_cast<size_t>(tokens.n) * row);
  parallel.run(kChunks, [&](int32_t i) noexcept {
    const auto [first, end] = chunk(tokens.n, i);
    const Tokens part = tokens.part(first, end);
    uint8_t* index = indices.data() + static_cast<size_t>(first) * row;
    encoder.encode(part.pairs(), nullptr, part.n, beam,
                   std::span(work).subspan(static_cast<size_t>(i) * work_bytes, work_bytes), index);
    for (int32_t t = 0; t < part.n; ++t) {
      float* vector = part.vectors + static_cast<size_t>(t) * part.vector();
      for (int32_t stage = 0; stage < encoder.stages(); ++stage, index += 2) {
        run.subtract_centre(vector, encoder.code(stage, index[0]), encoder.code(stage, index[1]), padded(part.group),
                            vector);
      }
    }
  });
}

}  // namespace kvq::keys
