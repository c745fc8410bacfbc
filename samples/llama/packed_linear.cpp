#include "packed_linear.h"

#include "kvq.hpp"

namespace llama {

void apply_packed(std::span<const Product> products, std::span<const float> x) {
  std::vector<const qp_matrix*> matrices;
  std::vector<void*> outputs;
  for (const Product& product : products) {
    matrices.push_back(*product.linear->packed);
    outputs.push_back(product.y.data());
  }
  const auto n = static_cast<int32_t>(static_cast<int64_t>(x.size()) / products.front().linear->weight.columns);
  kvq::Matrix::linear_shared(matrices, x.data(), n, outputs, KVQ_F32);
}

}  // namespace llama
