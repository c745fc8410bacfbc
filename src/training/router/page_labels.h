// Labels pages with the cheapest expert that is good enough.
#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Errors of the pages of one group of layers.
struct GroupErrors {
  explicit GroupErrors(Allocator& allocator) : errors(allocator) {}

  Vector<float> errors;  // [pages, experts] the means over the layers; pages of heads separate if each votes
  double layers = 1.0;   // that the decision applies to
};

/// Last expert, with the fewest bits, whose error is at most `tolerance`; the first if none.
uint8_t label_page(std::span<const float> errors, float tolerance);

/// Label all pages of a group.
void label_pages(const GroupErrors& group, size_t experts, float tolerance, std::span<uint8_t> labels);

/// Mean bits over the pages of all layers if stored as labelled.
double label_bits(std::span<const GroupErrors> groups, std::span<const double> expert_bits, float tolerance);

/// Find the common tolerance of all groups whose mean bits are closest to `wanted`.
float find_tolerance(std::span<const GroupErrors> groups, std::span<const double> expert_bits, double wanted);

}  // namespace kvq
