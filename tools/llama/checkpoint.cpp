#include "checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "error.h"
#include "json_document.h"
#include "mapped_file.h"

namespace llama {

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// An index comes with downloaded weights: it may only name files beside itself.
void check_shard_name(const std::string& name, const std::string& place) {
  const std::filesystem::path path(name);
  const bool plain =
      !name.empty() && name.find('\0') == std::string::npos && path.filename() == path && name != "." && name != "..";
  if (!plain) throw Error(place + ": " + in_quotes(name) + " is not the name of a file in the model directory");
}

uint64_t parse_fingerprint(const std::string& text, const std::string& source) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (code == std::errc() && end == text.data() + text.size()) return value;
  throw Error(source + ": metadata " + in_quotes(kFingerprintField) + " is " + in_quotes(text) +
              ", expected up to 16 hexadecimal digits");
}

}  // namespace

bool Checkpoint::is_in(const std::filesystem::path& directory) {
  return is_present(directory / kSingleFile) || is_present(directory / kIndexFile);
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  shards_.emplace_back(path);
  for (const TensorView& tensor : shards_.back().tensors()) tensors_.emplace(tensor.name, &tensor);
}

Checkpoint::Checkpoint(const std::filesystem::path& place) : place_(place) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(place, ignored)) {
    if (place.extension() == ".json")
      throw Error(place.string() + ": holds no weights: give the directory that it is in");
    add_file(place);
  } else if (is_present(place / kSingleFile)) {
    add_file(place / kSingleFile);
  } else {
    add_shards(place / kIndexFile);
  }
}

void Checkpoint::add_shards(const std::filesystem::path& index_path) {
  if (!is_present(index_path)) {
    throw Error(place_.string() + ": found neither " + kSingleFile + " nor " + kIndexFile);
  }
  const nlohmann::json document = read_json(index_path);
  const JsonObject weight_map = JsonObject(document, index_path.string()).object("weight_map");
  std::map<std::string, std::vector<std::string>> tensors_of_shard;
  for (const auto& [tensor, shard] : weight_map.json().items()) {
    if (!shard.is_string()) weight_map.refuse(tensor.c_str(), "expected the name of a file");
    check_shard_name(shard.get<std::string>(), weight_map.place() + ": " + tensor);
    tensors_of_shard[shard.get<std::string>()].push_back(tensor);
  }
  for (const auto& [shard, names] : tensors_of_shard) {
    const SafetensorsFile& file = shards_.emplace_back(place_ / shard);
    for (const std::string& name : names) {
      const TensorView* tensor = file.find(name);
      if (tensor == nullptr) throw Error((place_ / shard).string() + ": tensor " + in_quotes(name) + " is missing");
      tensors_.emplace(name, tensor);
    }
  }
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? found->second : nullptr;
}

const TensorView& Checkpoint::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) throw Error(place_.string() + ": tensor " + in_quotes(name) + " is missing");
  return *tensor;
}

std::span<const std::byte> Checkpoint::file_of_matrix(const std::string& name) const {
  for (const SafetensorsFile& shard : shards_) {
    if (shard.metadata().contains(name + ".scheme")) return shard.bytes();
  }
  return {};
}

void Checkpoint::forget() const {
  for (const SafetensorsFile& shard : shards_) shard.forget();
}

uint64_t Checkpoint::fingerprint() const {
  for (const SafetensorsFile& shard : shards_) {
    const auto stated = shard.metadata().find(kFingerprintField);
    if (stated != shard.metadata().end()) return parse_fingerprint(stated->second, place_.string());
  }
  constexpr size_t kPieces = 16;
  constexpr size_t kPieceBytes = 64;
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  const auto add = [&hash](const void* bytes, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001B3u;
  };
  for (const auto& [name, tensor] : tensors_) {
    add(name.data(), name.size() + 1);
    add(tensor->dtype.data(), tensor->dtype.size());
    for (const int64_t size : tensor->shape) add(&size, sizeof(size));
    const std::span<const std::byte> data = tensor->data;
    const size_t length = std::min(kPieceBytes, data.size());
    for (size_t i = 0; i < kPieces; ++i) add(data.data() + (data.size() - length) * i / (kPieces - 1), length);
  }
  return hash;
}

}  // namespace llama
