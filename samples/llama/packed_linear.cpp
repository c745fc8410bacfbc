#include "packed_linear.h"

#include "handles.h"

namespace llama {

void apply_packed(std::span<const Product> products, std::span<const float> x) {
  std::vector<const qp_matrix*> matrices;
  std::vector<void*> outputs;
  for (const Product& product : products) {
    matrices.push_back(product.linear->packed.get());
    outputs.push_back(product.y.data());
  }
  const auto n = static_cast<int32_t>(static_cast<int64_t>(x.size()) / products.front().linear->weight.columns);
  checked([&](kvq_error* error) {
    return qp_linear_shared(matrices.data(), static_cast<int32_t>(matrices.size()), x.data(), n, outputs.data(),
                            KVQ_F32, error);
  });
}

}  // namespace llama
