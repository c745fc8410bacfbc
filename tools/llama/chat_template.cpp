#include "chat_template.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "error.h"
#include "json_document.h"
#include "mapped_file.h"

namespace llama {
namespace {

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kConfigFile = "tokenizer_config.json";

nlohmann::json read_config(const std::filesystem::path& directory) {
  return is_present(directory / kConfigFile) ? read_json(directory / kConfigFile) : nlohmann::json::object();
}

/// A text or, in other files, an object with the text in `content`.
std::string read_token(const nlohmann::json& config, const char* key, const std::string& source) {
  const JsonObject root(config, source);
  const nlohmann::json* token = root.find(key);
  if (token == nullptr) return {};
  return token->is_object() ? root.object(key).string("content") : root.string(key);
}

/// One of several templates is named "default".
const nlohmann::json* find_template(const nlohmann::json& config, const std::string& source) {
  const nlohmann::json* found = JsonObject(config, source).find("chat_template");
  if (found == nullptr || !found->is_array()) return found;
  for (const nlohmann::json& each : *found) {
    if (each.is_object() && each.value("name", nlohmann::json()) == "default")
      return JsonObject(each, source).find("template");
  }
  return nullptr;
}

jinja::Template read_template(const std::filesystem::path& directory, const nlohmann::json& config) {
  const std::filesystem::path file = directory / kTemplateFile;
  if (is_present(file)) {
    const MappedFile mapped(file);
    return {{reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size()}, file.string()};
  }
  const std::string source = (directory / kConfigFile).string();
  const nlohmann::json* text = find_template(config, source);
  if (text == nullptr || !text->is_string()) {
    throw Error(directory.string() + " has no chat template, neither " + kTemplateFile + " nor a chat_template in " +
                kConfigFile +
                ": take the model that was trained to chat, often named Instruct, or continue plain text "
                "with kvq generate --prompt");
  }
  return {text->get_ref<const std::string&>(), source + ": chat_template"};
}

}  // namespace

ChatTemplate::ChatTemplate(const std::filesystem::path& model_directory)
    : template_([&] {
        const nlohmann::json config = read_config(model_directory);
        const std::string source = (model_directory / kConfigFile).string();
        bos_token_ = read_token(config, "bos_token", source);
        eos_token_ = read_token(config, "eos_token", source);
        return read_template(model_directory, config);
      }()) {}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  jinja::Json list = jinja::Json::array();
  for (const ChatMessage& each : messages) list.push_back({{"role", each.role}, {"content", each.content}});
  return template_.render({{"messages", list},
                           {"add_generation_prompt", true},
                           {"bos_token", bos_token_},
                           {"eos_token", eos_token_},
                           {"tools", nullptr},
                           {"documents", nullptr}});
}

}  // namespace llama
