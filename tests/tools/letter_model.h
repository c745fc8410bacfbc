#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runs.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

/// A directory with a model of two layers that reads letters, and a text of random ones.
class LetterModel {
 public:
  explicit LetterModel(const TinyLayout& layout = tiny_layouts()[0]) {
    using nlohmann::json;
    TinyModel(layout).write(directory_);
    json vocabulary = {{"<unk>", 0}};
    for (int i = 0; i < 26; ++i) vocabulary[std::string(1, static_cast<char>('a' + i))] = i + 1;
    const json tokenizer = {
        {"decoder", {{"type", "Fuse"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}, {"unk_token", "<unk>"}}}};
    directory_.write("tokenizer.json", tokenizer.dump());
    std::string text;
    for (const int32_t token : random_tokens(2000, 26)) text += static_cast<char>('a' + token);
    directory_.write("text.txt", text);
  }

  std::string path(const char* name) const { return (directory_.path() / name).string(); }
  std::string model() const { return directory_.path().string(); }
  std::string write(const char* name, const std::string& content) const {
    return directory_.write(name, content).string();
  }

 private:
  ScratchDirectory directory_;
};
