#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "json_document.h"

namespace llama {

/// Fields of the decoder in a `config.json`. Models give a field different names, keep it in different objects, or
/// leave it out where it has the value that the code of their kind assumes.
class ConfigFields {
 public:
  /// Names of one field, the most usual first: messages use that.
  using Names = std::initializer_list<const char*>;

  /// \param root  the whole file; refers to its document.
  explicit ConfigFields(const JsonObject& root);

  const std::string& model_type() const { return model_type_; }
  const JsonObject& object() const { return decoder_; }

  /// Whether the field is given or assumed.
  bool has(Names names) const;
  int64_t integer(Names names, int64_t low, int64_t high) const;
  int64_t integer(Names names, int64_t low, int64_t high, int64_t fallback) const;
  bool flag(Names names, bool fallback) const;
  std::string string(Names names, const std::string& fallback) const;
  /// A list of the right length, or nothing where there is none.
  std::vector<std::string> strings(Names names, size_t length) const;
  std::vector<int64_t> integers(Names names) const;
  bool is_list(const char* name) const;

  [[noreturn]] void refuse(const char* name, const std::string& expected) const;

 private:
  struct Place {
    const JsonObject* object = nullptr;  // null: the field is not given
    const char* name = nullptr;
  };
  Place place_of(Names names) const;
  /// What the code of this kind of models assumes; null: nothing.
  const int64_t* assumed(Names names) const;

  JsonObject root_;
  JsonObject decoder_;  // `text_config`, or the root
  std::string model_type_;
};

}  // namespace llama
