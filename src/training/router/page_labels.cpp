#include "training/router/page_labels.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvq {

uint8_t label_page(std::span<const float> errors, float tolerance) {
  size_t expert = errors.size() - 1;
  while (expert > 0 && !(errors[expert] <= tolerance)) --expert;
  return static_cast<uint8_t>(expert);
}

void label_pages(const GroupErrors& group, size_t experts, float tolerance, std::span<uint8_t> labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = label_page(std::span(group.errors).subspan(i * experts, experts), tolerance);
  }
}

double label_bits(std::span<const GroupErrors> groups, std::span<const double> expert_bits, float tolerance) {
  const size_t experts = expert_bits.size();
  double sum = 0.0;
  double weights = 0.0;
  for (const GroupErrors& group : groups) {
    for (size_t begin = 0; begin < group.errors.size(); begin += experts) {
      sum += group.layers * expert_bits[label_page(std::span(group.errors).subspan(begin, experts), tolerance)];
      weights += group.layers;
    }
  }
  return sum / weights;
}

float find_tolerance(std::span<const GroupErrors> groups, std::span<const double> expert_bits, double wanted) {
  // Nonnegative floats are ordered as their bits, and mean bits fall as the tolerance rises.
  uint32_t enough = 0;  // smallest tolerance with at most the wanted bits
  for (const GroupErrors& group : groups) {
    for (const float error : group.errors) enough = std::max(enough, std::bit_cast<uint32_t>(error));
  }
  const auto bits = [&](uint32_t tolerance) {
    return label_bits(groups, expert_bits, std::bit_cast<float>(tolerance));
  };
  uint32_t low = 0;
  while (low < enough) {
    const uint32_t middle = low + (enough - low) / 2;
    if (bits(middle) <= wanted) {
      enough = middle;
    } else {
      low = middle + 1;
    }
  }
  if (enough == 0) return 0.0F;
  const bool below_is_closer = bits(enough - 1) - wanted < wanted - bits(enough);
  return std::bit_cast<float>(below_is_closer ? enough - 1 : enough);
}

}  // namespace kvq
