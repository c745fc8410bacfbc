#include "bench/random_codebook.h"

#include <cmath>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "llama/safetensors.h"
#include "options/spec.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr int32_t kKeyCodes = 64;
constexpr uint64_t kCodeSeed = 20;

/// The file of a codebook, in memory.
class CodebookFile {
 public:
  void note(const std::string& name, const std::string& value) { content_.metadata[name] = value; }

  /// In ascending order of name.
  template <class Number>
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<Number>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    const std::vector<std::byte>& kept = tensors_.emplace_back(bytes.begin(), bytes.end());
    constexpr llama::DType kType = sizeof(Number) == sizeof(float) ? llama::DType::kF32 : llama::DType::kF16;
    content_.tensors.push_back({.name = "layers.0." + name, .dtype = kType, .shape = shape, .data = kept});
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> file;
    llama::write_safetensors(
        content_, [&file](std::span<const std::byte> part) { file.insert(file.end(), part.begin(), part.end()); });
    return file;
  }

 private:
  llama::SafetensorsContent content_;
  std::deque<std::vector<std::byte>> tensors_;
};

void describe(CodebookFile& file, int32_t bits, int32_t stages, const LayerShape& shape) {
  file.note("type", "kvq.codebook");
  file.note("version", "1");
  file.note("n_layers", "1");
  file.note("kv_heads", std::to_string(shape.kv_heads));
  file.note("head_dim", std::to_string(shape.head_dim));
  file.note("rope", "half");
  file.note("key_stages", std::to_string(stages));
  file.note("key_codes", std::to_string(kKeyCodes));
  file.note("key_group", std::to_string(shape.head_dim / 2));
  file.note("key_norms", "layer");
  file.note("value_bits", std::to_string(bits));
  file.note("value_scope", "layer");
  file.note("model_id", hexadecimal(0));
  file.note("seed", "0");
  file.note("note", "random");
  file.note("layers.0.tokens", "1");
  std::string errors = "0";
  for (int32_t stage = 1; stage < stages; ++stage) errors += " 0";
  file.note("layers.0.key_errors", errors);
  file.note("layers.0.value_error", "0");
}

}  // namespace

kvq::Codebook random_codebook(kvq_context* context, int32_t bits, const LayerShape& shape) {
  const int32_t stages = key_stages(bits, shape.head_dim);
  const auto width = static_cast<int64_t>(shape.token_width());
  const int64_t value_codes = bits * width;
  CodebookFile file;
  describe(file, bits, stages, shape);

  // Of the size of what is coded: stages add up to vectors of norm 1, and half of the bits to values of variance 1.
  const size_t in_codes = static_cast<size_t>(kKeyCodes) * static_cast<size_t>(shape.head_dim);
  const double key_size = 1.0 / std::sqrt(static_cast<double>(stages) * static_cast<double>(width));
  file.add("keys.codes", {shape.kv_heads, 1, stages, kKeyCodes, shape.head_dim / 2, 2},
           normal_halves(static_cast<size_t>(shape.kv_heads * stages) * in_codes, kCodeSeed, key_size));
  const double value_size = 2.0 / std::sqrt(static_cast<double>(value_codes));
  const std::vector<uint16_t> codes =
      normal_halves(static_cast<size_t>(value_codes * width), kCodeSeed + 1, value_size);
  const auto floats = [](int64_t n, float each) { return std::vector<float>(static_cast<size_t>(n), each); };
  file.add("values.channel_scale", {shape.kv_heads, shape.head_dim}, floats(width, 1.0F));
  file.add("values.codes", {1, value_codes, width}, codes);
  file.add("values.offset", {1, width}, floats(width, 0.0F));
  file.add("values.proposal", {1, value_codes, width}, codes);
  file.add("values.proposal_bias", {1, value_codes}, floats(value_codes, 0.0F));
  return kvq::Codebook::load(context, file.bytes());
}

}  // namespace cli
