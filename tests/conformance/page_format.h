// Page formats as tests name and parse them.
#pragma once

#include "support/handles.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace conformance {

inline constexpr int kPageSlots = 32;

struct PageFormat {
  enum class Family { kFloat16, kInteger, kCodes, kGainShape };

  Family family = Family::kFloat16;
  int bits = 16;  // 0: set by a codebook
  bool hadamard = false;
  bool page_mean = false;  // keys only
  bool centres = false;    // trained centres

  bool sealed() const { return family != Family::kFloat16; }
  bool coded() const { return family == Family::kCodes; }
  bool integer() const { return family == Family::kInteger; }
  bool gain_shape() const { return family == Family::kGainShape; }

  // "int4", "int4+hadamard", "fp16", "commvq", "gs4", "gt2+nocentre", "gt1+centres".
  static PageFormat parse(const std::string& name) {
    if (name == "fp16") return {};
    if (name == "commvq") return {Family::kCodes, 0};
    const size_t plus = name.find('+');
    const bool plain = plus == std::string::npos;
    if (name.rfind("gs", 0) == 0 || name.rfind("gt", 0) == 0) {
      return {Family::kGainShape, std::stoi(name.substr(2, plus - 2)), true, plain, kvq_test::wants_centres(name)};
    }
    if (name.rfind("int", 0) != 0) throw std::invalid_argument(name);
    return {Family::kInteger, std::stoi(name.substr(3, plus - 3)), !plain};
  }
};

// Storage of a cache: key and value format of a layer, and the pages that stay FP16.
struct Storage {
  std::string keys = "fp16";
  std::string values = "fp16";
  int group = 32;
  int sink = 0;
  int recent = 1;
  kvq_test::Codes codes = {};
  std::string attention = {};  // method of attention to pages with codes; empty: the library chooses
  kvq_test::CentreCounts centres = {};

  static Storage uniform(const std::string& format) { return {format, format, 32, 0, 1, {}}; }

  bool coded() const { return PageFormat::parse(keys).coded() || PageFormat::parse(values).coded(); }
  bool centred() const { return PageFormat::parse(keys).centres || PageFormat::parse(values).centres; }

  std::string name() const {
    std::string text = keys == values ? keys : keys + "/" + values;
    if (group != 32) text += " g" + std::to_string(group);
    if (coded()) text += " " + codes.name();
    if (centred()) text += " " + centres.name();
    if (!attention.empty()) text += ", " + attention;
    return text;
  }

  std::string policy() const {
    const PageFormat v = PageFormat::parse(values);
    std::string text = "version: 1\nkeys: " + keys + "\n";
    text += v.integer()
                ? "values: {format: int" + std::to_string(v.bits) + ", hadamard: " + (v.hadamard ? "true" : "false") +
                      ", group: " + std::to_string(group) + "}\n"
                : "values: " + values + "\n";
    if (!attention.empty()) text += "commvq: {attention: " + attention + "}\n";
    return text + "sink: " + std::to_string(sink) + "\nrecent: " + std::to_string(recent) + "\n";
  }

  // Whether page `index` of a list of `n_tokens` that was only appended to is in its final format.
  bool is_sealed(int index, int n_tokens) const {
    if (!PageFormat::parse(keys).sealed() && !PageFormat::parse(values).sealed()) return false;
    const int n_pages = (n_tokens + kPageSlots - 1) / kPageSlots;
    return index >= sink && index < n_pages - recent;
  }

  int sealed_pages(int n_tokens) const {
    int n = 0;
    for (int page = 0; page * kPageSlots < n_tokens; ++page) n += is_sealed(page, n_tokens) ? 1 : 0;
    return n;
  }
};

inline kvq_test::Cache make_cache(kvq_context* context, const kvq_cache_options& options, const Storage& storage) {
  return storage.coded() ? kvq_test::make_cache(context, options, storage.policy(), storage.codes)
                         : kvq_test::make_cache(context, options, storage.policy(), storage.centres);
}

// Storages that every device supports.
inline const std::vector<std::string>& all_formats() {
  static const std::vector<std::string> names = {
      "fp16", "int8", "int8+hadamard", "int4", "int4+hadamard", "int3", "int3+hadamard", "int2", "int2+hadamard"};
  return names;
}

// Gain-shape pages relative to the mean of a page's keys, or without a centre.
inline const std::vector<std::string>& gain_shape_formats() {
  static const std::vector<std::string> names = {"gs4", "gs3", "gs2",          "gs1",         "gt3",
                                                 "gt2", "gt1", "gs2+nocentre", "gt2+nocentre"};
  return names;
}

// The uniform formats, and pairs in which every format stores keys and values once more.
inline std::vector<Storage> all_storages() {
  std::vector<Storage> storages;
  for (const std::string& name : all_formats()) storages.push_back(Storage::uniform(name));
  storages.push_back({"int4+hadamard", "int2", 32, 0, 1, {}});
  storages.push_back({"fp16", "int4", 32, 0, 1, {}});
  storages.push_back({"int3", "fp16", 32, 0, 1, {}});
  storages.push_back({"int8", "int4+hadamard", 64, 0, 1, {}});
  storages.push_back({"int2", "int3", 128, 0, 1, {}});
  for (const std::string& name : gain_shape_formats()) storages.push_back(Storage::uniform(name));
  storages.push_back({"gs4+nocentre", "int4+hadamard", 32, 0, 1, {}});
  storages.push_back({"gt1", "fp16", 32, 0, 1, {}});
  storages.push_back({"int2+hadamard", "gt3", 32, 0, 1, {}});
  storages.push_back({"fp16", "gs3", 32, 0, 1, {}});
  return storages;
}

// Trained centres: one and several, on one or both sides, every width, and mixed with every other kind of format.
inline std::vector<Storage> centred_storages() {
  const auto pair = [](const char* keys, const char* values, const kvq_test::CentreCounts& centres, int sink = 0) {
    return Storage{.keys = keys, .values = values, .sink = sink, .centres = centres};
  };
  return {pair("gs2+centres", "gs2+centres", {.keys = 1, .values = 1}),
          pair("gs2+centres", "gt1+centres", {.keys = 5, .values = 3}, 1),
          pair("gs4+centres", "gs4+centres", {.keys = 17, .values = 1}),
          pair("gt2+centres", "gs1+centres", {.keys = 1, .values = 40}),
          pair("gs3+centres", "int4+hadamard", {.keys = 2, .values = 0}),
          pair("gs1+centres", "fp16", {.keys = 16, .values = 0}),
          pair("gt1+centres", "gs3", {.keys = 1, .values = 0}),
          pair("gs2+nocentre", "gt3+centres", {.keys = 0, .values = 16}),
          pair("int8", "gs4+centres", {.keys = 0, .values = 1}),
          pair("fp16", "gt2+centres", {.keys = 0, .values = 7}),
          pair("gt3+centres", "gs3+centres", {.keys = 256, .values = 256})};
}

// Each storage with every method of attention.
inline std::vector<Storage> every_way(const std::vector<Storage>& storages) {
  std::vector<Storage> result;
  for (const char* way : {"auto", "tables", "rebuild"}) {
    for (Storage storage : storages) {
      storage.attention = way;
      result.push_back(storage);
    }
  }
  return result;
}

// Codes per layer and per head, alone and with every other kind of format.
inline std::vector<Storage> coded_storages() {
  const kvq_test::Codes of_layer{.stages = 3, .codes = 16, .bits = 1};
  const kvq_test::Codes of_head{.stages = 2, .codes = 64, .bits = 2, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD};
  return {{"commvq", "commvq", 32, 0, 1, of_layer},
          {"commvq", "commvq", 32, 1, 2, of_head},
          {"commvq", "commvq", 32, 0, 1, {.stages = 2, .codes = 16, .bits = 1, .norms = KVQ_SCOPE_HEAD}},
          {"commvq", "commvq", 32, 0, 1, {.stages = 2, .codes = 16, .bits = 1, .scope = KVQ_SCOPE_HEAD}},
          {"commvq", "int4", 32, 0, 1, {.stages = 2, .codes = 64, .bits = 0}},
          {"commvq",
           "fp16",
           32,
           0,
           1,
           {.stages = 3, .codes = 16, .bits = 0, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD}},
          {"fp16", "commvq", 32, 0, 1, {.stages = 0, .bits = 2}},
          {"int8", "commvq", 32, 0, 1, {.stages = 0, .bits = 1, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD}}};
}

}  // namespace conformance
