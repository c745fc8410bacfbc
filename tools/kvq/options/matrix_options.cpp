#include "options/matrix_options.h"

#include <charconv>

#include "kvq.hpp"
#include "options/command.h"

namespace cli {

Option add_schemes_option(Command command, std::vector<std::string>& schemes, const std::string& help) {
  return command.add_option("--scheme", schemes, help).repeatable();
}

void check_scheme(const std::string& scheme) {
  if (kvq::scheme_bits(scheme) > 0.0) return;
  std::string names;
  for (const std::string& name : kvq::scheme_names()) names += (names.empty() ? "" : ", ") + name;
  throw UsageError("--scheme " + scheme + ": not one of " + names);
}

void add_shape_option(Command command, std::string& shape) {
  command.add_option("--shape", shape, "Outputs and inputs of the layer").show_default();
}

MatrixShape parse_matrix_shape(const std::string& text) {
  constexpr int64_t kMostRows = int64_t{1} << 24;
  constexpr int64_t kMostColumns = int64_t{1} << 20;
  constexpr int64_t kColumnMultiple = 64;
  MatrixShape shape;
  const char* const end = text.data() + text.size();
  const auto [cross, out_code] = std::from_chars(text.data(), end, shape.out);
  if (out_code == std::errc() && cross != end && *cross == 'x') {
    const auto [stop, in_code] = std::from_chars(cross + 1, end, shape.in);
    if (in_code != std::errc() || stop != end) shape.in = 0;
  }
  if (shape.out < 1 || shape.out > kMostRows || shape.in < 1 || shape.in > kMostColumns ||
      shape.in % kColumnMultiple != 0) {
    throw UsageError("--shape " + text + ": expected OUTxIN, OUT from 1 to " + std::to_string(kMostRows) +
                     " and IN a multiple of " + std::to_string(kColumnMultiple) + " up to " +
                     std::to_string(kMostColumns));
  }
  return shape;
}

}  // namespace cli
