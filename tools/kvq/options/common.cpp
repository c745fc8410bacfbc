#include "options/common.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <thread>

#include "terminal/output.h"

namespace cli {
namespace {

constexpr int32_t kMaxThreads = 1024;

constexpr double kMostByteCount = 0x1p60;
constexpr double kLeastWithoutUnit = 1e6;  // whoever writes "8" means no 8 bytes

/// Bytes of a unit in lower case, KB with 1000 and K, Ki and KiB with 1024; 0: there is no such unit.
double unit_bytes(std::string unit) {
  const bool has_b = unit.ends_with('b');
  if (has_b) unit.pop_back();
  const bool has_i = unit.ends_with('i');
  if (has_i) unit.pop_back();
  if (unit.empty()) return has_i ? 0.0 : 1.0;
  const size_t power = unit.size() == 1 ? std::string_view("kmgt").find(unit) : std::string_view::npos;
  return power == std::string_view::npos ? 0.0
                                         : std::pow(has_b && !has_i ? 1000.0 : 1024.0, static_cast<double>(power + 1));
}

/// The scheme nearest to what another program calls its own, by the first digit: q4_k_m, iq2_xs, nf4, int8, fp8; empty
/// where none is.
std::string nearest_to_other(const std::string& scheme) {
  constexpr std::array<const char*, 10> kNearest = {"",      "tcx-1.5", "vq-2", "vq-3",  "vq-4",
                                                    "nuq-5", "nuq-6",   "",     "nuq-8", ""};
  const size_t digit = scheme.find_first_of("0123456789");
  const bool has_letters = digit != std::string::npos && digit > 0 && scheme.find('-') > digit;
  return has_letters ? kNearest[static_cast<size_t>(scheme[digit] - '0')] : "";
}

}  // namespace

void add_threads_option(Command command, ComputeOptions& options) {
  options.threads = std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  command.add_number("--threads", options.threads, 1, kMaxThreads, "Threads to compute with");
}

void add_compute_options(Command command, ComputeOptions& options) {
  add_threads_option(command, options);
  command.add_option("--isa", options.isa, "Instruction set of the kernels; `kvq info` lists them (default: the best)");
}

void add_device_options(Command command, ComputeOptions& options) {
  command.add_choice("--device", options.device, {"cpu", "cuda"}, "Where to compute");
  command.add_number("--device-index", options.device_index, 0, 1 << 16, "Which of several GPUs");
}

void add_json_flag(Command command, bool& json) { command.add_flag("--json", json, "Print one JSON object"); }

void add_run_options(Command command, ComputeOptions& options, bool& json) {
  add_compute_options(command, options);
  add_device_options(command, options);
  add_json_flag(command, json);
}

void add_seed_option(Command command, uint64_t& seed, const std::string& help) {
  command.add_option("--seed", seed, help)
      .check([](const std::string& text) {
        uint64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [stop, code] = std::from_chars(text.data(), end, number);
        const bool is_seed = code == std::errc() && stop == end;
        return is_seed ? std::string() : "must be an integer from 0 to 18446744073709551615, not \"" + text + "\"";
      })
      .show_default();
}

kvq_context_options context_options(const ComputeOptions& options) {
  auto result = kvq::initialised<kvq_context_options>();
  result.n_threads = options.threads;
  if (!options.isa.empty()) result.cpu_isa = options.isa.c_str();
  result.device = options.device == "cuda" ? KVQ_DEVICE_CUDA : KVQ_DEVICE_CPU;
  result.device_index = options.device_index;
  return result;
}

kvq::Context make_context(const ComputeOptions& options) { return kvq::Context(context_options(options)); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) names.emplace_back(kvq_cpu_isa_name(i));
  return names;
}

std::string machine_text(const kvq::Context& context, const ComputeOptions& options) {
  if (options.device == "cuda") {
    return std::string(kvq::device_describe(KVQ_DEVICE_CUDA, options.device_index).name) + ", " +
           context.describe().isa;
  }
  return std::to_string(options.threads) + (options.threads == 1 ? " thread with " : " threads with ") +
         context.describe().isa + " instructions";
}

uint64_t parse_byte_count(const std::string& text, const std::string& option) {
  double number = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  std::ranges::transform(unit, unit.begin(), [](unsigned char each) { return std::tolower(each); });
  const double factor = unit_bytes(unit);
  if (code == std::errc() && factor > 0.0) {
    const double bytes = std::floor(number * factor);
    if (unit.empty() && bytes >= 1.0 && bytes < kLeastWithoutUnit) {
      throw UsageError(option + " " + text + ": is a number of bytes, and too few to be meant: write " + text +
                       "GiB, " + text + "MB or, if they are meant, " + text + "B");
    }
    if (bytes >= 1.0 && bytes <= kMostByteCount) return static_cast<uint64_t>(bytes);
  }
  throw UsageError(option + " " + text + ": expected a number of bytes, such as 6GiB, 512MB or 1000000");
}

Option add_schemes_option(Command command, std::vector<std::string>& schemes, const std::string& help) {
  return command.add_option("--scheme", schemes, help).repeatable();
}

void check_scheme(const std::string& scheme) {
  if (kvq::scheme_bits(scheme) > 0.0) return;
  if (const std::string nearest = nearest_to_other(scheme); !nearest.empty()) {
    throw UsageError("--scheme " + scheme + ": no scheme of weights: write " + nearest + ", which is nearest");
  }
  throw UsageError("--scheme " + scheme + ": not one of " + joined(kvq::scheme_names()));
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
