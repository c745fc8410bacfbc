#include "formats/commvq/value_network.h"

#include "formats/commvq/value_network_layers.h"

namespace kvq {

void propose_bits(const ValueNetwork& network, const ValueKernels& kernels, const float* columns, float* workspace,
                  float* bits) noexcept {
  const size_t width = network.width();
  const size_t hidden = network.hidden();
  const size_t outputs = network.second_bias.size();
  float* input = workspace;
  float* units = input + width * kValueBlock;
  float* output = units + hidden * kValueBlock;
  network::standardize(columns, width, input);
  network::shift_rows(input, width, network.norm_gain.data(), network.norm_bias.data(), input);
  network::multiply(kernels, network.first.data(), width, 1, hidden, width, input, units);
  network::shift_rows<float>(units, hidden, nullptr, network.first_bias.data(), units);
  for (size_t i = 0; i < hidden * kValueBlock; ++i) units[i] = static_cast<float>(network::Gelu(units[i]).value);
  network::multiply(kernels, network.second.data(), hidden, 1, outputs, hidden, units, output);
  network::shift_rows<float>(output, outputs, nullptr, network.second_bias.data(), output);
  for (size_t pair = 0; pair < outputs / kPairChoices; ++pair) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      const size_t choice = network::largest(output + pair * kPairChoices * kValueBlock + i, kValueBlock);
      network::set_bits(choice, bits + 2 * pair * kValueBlock + i);
    }
  }
}

}  // namespace kvq
