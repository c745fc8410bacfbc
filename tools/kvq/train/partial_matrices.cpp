#include "train/partial_matrices.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "llama/error.h"
#include "llama/json_document.h"
#include "terminal/output_file.h"

namespace cli {
namespace {

constexpr const char* kOptionsFile = "options.json";

std::string value_text(const nlohmann::json& object, const std::string& key) {
  return object.contains(key) ? object[key].dump() : "not given";
}

/// An Error that names the first option that differs.
void check_same(const nlohmann::json& kept, const nlohmann::json& wanted, const std::filesystem::path& directory) {
  for (const auto& [key, value] : wanted.items()) {
    if (kept.contains(key) && kept[key] == value) continue;
    throw llama::Error(directory.string() + " holds other work: its " + key + " is " + value_text(kept, key) +
                       ", not " + value.dump() + "; remove it or choose another --out");
  }
}

}  // namespace

PartialMatrices::PartialMatrices(std::filesystem::path directory, const nlohmann::ordered_json& made_with)
    : directory_(std::move(directory)) {
  std::error_code failure;
  std::filesystem::create_directory(directory_, failure);
  if (failure) throw llama::Error("cannot make " + directory_.string() + ": " + failure.message());
  const std::filesystem::path options = directory_ / kOptionsFile;
  if (std::filesystem::exists(options, failure)) {
    check_same(llama::read_json(options), made_with, directory_);
    return;
  }
  if (!is_empty()) throw llama::Error(directory_.string() + " holds other work; remove it or choose another --out");
  const std::string text = made_with.dump(2);
  write_file(options, std::as_bytes(std::span(text)));
}

bool PartialMatrices::holds(const std::string& name) const {
  std::error_code ignored;
  return std::filesystem::exists(file(name), ignored);
}

bool PartialMatrices::is_empty() const {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, ignored)) {
    if (entry.path().filename() != kOptionsFile) return false;
  }
  return true;
}

void PartialMatrices::keep(const std::string& name, std::span<const std::byte> bytes) const {
  write_file(file(name), bytes);
}

void PartialMatrices::remove(std::span<const llama::LinearLayer> layers) const {
  std::error_code ignored;
  for (const llama::LinearLayer& layer : layers) std::filesystem::remove(file(layer.name), ignored);
  std::filesystem::remove(directory_ / kOptionsFile, ignored);
  std::filesystem::remove(directory_, ignored);
}

}  // namespace cli
