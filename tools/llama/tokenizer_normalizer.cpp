#include "tokenizer_normalizer.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "error.h"
#include "json_document.h"

namespace llama {

namespace {

constexpr auto kForms = std::to_array<std::pair<const char*, NormalForm>>(
    {{"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}});

}  // namespace

Normalizer::Normalizer(const nlohmann::json& json, const std::string& place) {
  if (!json.is_null()) add_stages(json, place);
}

void Normalizer::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      stages_.emplace_back(form);
      return;
    }
  }
  if (type == "Sequence") {
    const nlohmann::json& list = object.at("normalizers");
    if (!list.is_array()) object.refuse("normalizers", "expected a list");
    for (size_t i = 0; i < list.size(); ++i) add_stages(list[i], place + "[" + std::to_string(i) + "]");
  } else if (type == "Prepend") {
    stages_.emplace_back(Prepend{object.string("prepend")});
  } else if (type == "Replace") {
    stages_.emplace_back(Replacement::read(object));
  } else {
    object.refuse("type", "expected Sequence, Prepend, Replace, NFC, NFD, NFKC or NFKD");
  }
}

std::string Normalizer::apply(std::string text) const {
  if (text.empty()) return text;
  for (const auto& stage : stages_) {
    if (const auto* form = std::get_if<NormalForm>(&stage)) {
      text = normalize(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&stage)) {
      text.insert(0, prepend->prefix);
    } else if (const auto* replace = std::get_if<Replacement>(&stage)) {
      replace->apply(text);
    }
  }
  return text;
}

}  // namespace llama
