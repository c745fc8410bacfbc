#include "options/cache_shape.h"

#include <charconv>
#include <map>
#include <sstream>

#include "options/command.h"

namespace cli {
namespace {

constexpr int32_t kContextOfShape = 131072;
constexpr int32_t kMostValueChannels = 512;

struct Entry {
  int32_t low;
  int32_t high;
  int32_t fallback;  // 0: must be given
};

/// Limits are those of kvq_cache_options and kvq_layer_shape.
const std::map<std::string, Entry, std::less<>>& entries() {
  static const std::map<std::string, Entry, std::less<>> known = {{"layers", {1, 65536, 0}},
                                                                  {"q_heads", {1, 65536, 0}},
                                                                  {"kv_heads", {1, 4096, -1}},
                                                                  {"head_dim", {8, 576, 0}},
                                                                  {"value_dim", {8, kMostValueChannels, -1}},
                                                                  {"latent", {0, 1, -1}},
                                                                  {"context", {1, 1 << 30, -1}}};
  return known;
}

[[noreturn]] void fail(const std::string& text, const std::string& why) {
  throw UsageError("--shape " + text + ": " + why + ", expected " + kCacheShapeForm);
}

std::map<std::string, int32_t, std::less<>> parse(const std::string& text) {
  std::map<std::string, int32_t, std::less<>> numbers;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const auto entry = entries().find(name);
    if (equals == std::string::npos || entry == entries().end()) fail(text, llama::in_quotes(part) + " is not known");
    const char* end = part.data() + part.size();
    int32_t number = 0;
    const auto [stop, error] = std::from_chars(part.data() + equals + 1, end, number);
    const auto& [low, high, fallback] = entry->second;
    if (error != std::errc() || stop != end || number < low || number > high) {
      fail(text, name + " must be a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    if (!numbers.emplace(name, number).second) fail(text, name + " is given twice");
  }
  for (const auto& [name, entry] : entries()) {
    if (entry.fallback == 0 && !numbers.contains(name)) fail(text, name + " is missing");
  }
  return numbers;
}

}  // namespace

llama::ModelShape parse_cache_shape(const std::string& text) {
  const auto numbers = parse(text);
  const auto number = [&](const char* name, int32_t fallback) {
    const auto found = numbers.find(name);
    return found != numbers.end() ? found->second : fallback;
  };
  llama::LayerShape layer;
  layer.is_latent = number("latent", 0) != 0;
  layer.q_heads = numbers.at("q_heads");
  layer.kv_heads = number("kv_heads", layer.is_latent ? 1 : layer.q_heads);
  layer.key_dim = numbers.at("head_dim");
  layer.value_dim = number("value_dim", layer.key_dim);
  if (layer.q_heads % layer.kv_heads != 0) fail(text, "kv_heads must divide q_heads");
  if (layer.is_latent && layer.value_dim >= layer.key_dim) {
    fail(text, "latent layers need value_dim, the channels that keys and values have in common");
  }
  if (layer.value_dim > kMostValueChannels) fail(text, "value_dim must be at most 512");
  if (layer.key_dim % 8 != 0 || layer.value_dim % 8 != 0) fail(text, "dimensions must be multiples of 8");
  llama::ModelShape shape;
  shape.layers.assign(static_cast<size_t>(numbers.at("layers")), layer);
  shape.max_positions = number("context", kContextOfShape);
  return shape;
}

}  // namespace cli
