#include "io/trained_files.h"

#include "core/error.h"
#include "formats/router/router.h"
#include "io/metadata_fields.h"

#include <array>
#include <type_traits>

namespace kvq::io {
namespace {

constexpr int32_t kTrainedFileVersion = 1;
constexpr std::string_view kExpertSeparator = ", ";
constexpr std::array<const char*, 3> kRopeNames = {"none", "half", "interleaved"};  // by kvq_rope
constexpr std::array<const char*, 3> kRotationNames = {"", "half", "interleaved"};  // the same where RoPE is mandatory
constexpr std::array<const char*, 2> kScopeNames = {"layer", "head"};               // by Scope
constexpr std::array<const char*, 2> kProposalNames = {"linear", "network"};        // by ValueProposal
constexpr std::array<const char*, 2> kRouterMethodNames = {"label", "paper"};       // by RouterMethod

/// Reads the fields of an object from a file, or writes them to one, so that one list of fields serves both.
template <bool reads>
class Fields {
 public:
  using File = std::conditional_t<reads, const MetadataFields, SafetensorsWriter>;

  Fields(Allocator& allocator_, File& file_, const char* list = nullptr, int32_t index = 0)
      : allocator(allocator_), file(file_), list_(list), index_(index) {}
  /// Names fields "<list>.<index>.<field>".
  Fields item(const char* list, int32_t index) const { return {allocator, file, list, index}; }

  /// Whether the file has an optional field; `is_needed`: whether it is written.
  bool has(const char* field, bool is_needed) const {
    if constexpr (reads) return file.has(Name(*this, field));
    return is_needed;
  }
  void text(const char* field, std::string_view value) const { file.add_metadata(Name(*this, field).view(), value); }
  template <typename Number, typename... Format>
  void number(const char* field, Number& value, Format... format) const {
    if constexpr (reads) {
      value = file.template number<Number>(Name(*this, field), format...);
    } else {
      text(field, NumberText(value, format...));
    }
  }
  void count(const char* field, auto& value) const {
    number(field, value);
    if constexpr (reads) check(value >= 0, field, "not negative");
  }
  void amount(const char* field, auto& value) const {
    if constexpr (reads) {
      value = file.amount(Name(*this, field));
    } else {
      number(field, value);
    }
  }
  void share(const char* field, auto& value) const {
    amount(field, value);
    if constexpr (reads) check(value <= 1.0, field, "in [0, 1]");
  }
  void amounts(const char* field, auto values, const char* expected) const {
    if constexpr (reads) {
      file.amounts(Name(*this, field), values, expected);
    } else {
      text(field, list_text(allocator, values));
    }
  }
  template <typename Choice, size_t n>
  void choice(const char* field, Choice& value, const std::array<const char*, n>& names, const char* expected) const {
    if constexpr (reads) {
      value = static_cast<Choice>(file.choice(Name(*this, field), names, expected));
    } else {
      text(field, names[static_cast<size_t>(value)]);
    }
  }
  void tensor(const char* field, kvq_dtype dtype, const TensorShape& shape, auto& numbers) const {
    if constexpr (reads) {
      file.read_tensor(Name(*this, field), dtype, shape, numbers);
    } else {
      file.add_tensor(Name(*this, field).view(), dtype, shape, numbers);
    }
  }
  void check(bool condition, const char* field, const char* expected) const {
    if (!condition) file.refuse(Name(*this, field), expected);
  }

  Allocator& allocator;
  File& file;

 private:
  class Name {
   public:
    Name(const Fields& fields, const char* field) {
      if (fields.list_ != nullptr) {
        std::snprintf(text_.data(), text_.size(), "%s.%d.%s", fields.list_, fields.index_, field);
      } else {
        std::snprintf(text_.data(), text_.size(), "%s", field);
      }
    }
    operator const char*() const { return text_.data(); }
    std::string_view view() const { return text_.data(); }

   private:
    std::array<char, 64> text_{};
  };

  const char* list_;
  int32_t index_;
};

/// Header of every file: the model that the object was trained for, and how.
template <bool reads, size_t n>
void list_header(const Fields<reads>& fields, std::string_view type, const std::array<const char*, n>& ropes,
                 const char* expected_rope, auto& rope, size_t most_note, auto& object) {
  if constexpr (reads) {
    fields.file.check_type(type, kTrainedFileVersion);
  } else {
    fields.text("type", type);
    fields.number("version", kTrainedFileVersion);
  }
  fields.choice("rope", rope, ropes, expected_rope);
  fields.number("n_layers", object.shape.n_layers);
  fields.number("kv_heads", object.shape.kv_heads);
  fields.number("head_dim", object.shape.head_dim);
  fields.number("model_id", object.model_id, kHexadecimal);
  fields.number("seed", object.seed);
  if constexpr (reads) {
    object.note = fields.file.note("note", most_note);
  } else {
    fields.text("note", object.note);
  }
}

/// Calls `use` with the fields, the layer, its numbers and its index, for every layer that is present.
template <bool reads>
void each_layer(const Fields<reads>& fields, auto& model, const auto& use) {
  const int32_t n_layers = model.shape.n_layers;
  if constexpr (reads) model.layers.resize(static_cast<size_t>(n_layers));
  for (int32_t i = 0; i < n_layers; ++i) {
    auto& layer = model.layers[static_cast<size_t>(i)];
    const Fields<reads> own = fields.item("layers", i);
    if (!own.has("tokens", layer.numbers != nullptr)) continue;
    own.count("tokens", layer.tokens);
    if constexpr (reads) {
      using Numbers = std::remove_const_t<typename decltype(layer.numbers)::element_type>;
      const auto numbers = std::allocate_shared<Numbers>(StlAllocator<Numbers>(fields.allocator), fields.allocator);
      use(own, layer, *numbers, i);
      layer.numbers = numbers;
    } else {
      use(own, layer, *layer.numbers, i);
    }
  }
  if constexpr (reads) {
    size_t arrays = 0;
    for_each_array(model.shape, [&](const auto& /*array*/) { ++arrays; });
    fields.file.check_tensor_count(arrays * static_cast<size_t>(model.layers_present()));
  }
}

struct CodebookFile {
  static constexpr const char* kContent = "codebook";

  template <bool reads>
  static void list(const Fields<reads>& fields, auto& codebook) {
    auto& shape = codebook.shape;
    list_header(fields, kCodebookType, kRotationNames, "half or interleaved", shape.pairing, kMaxCodebookNote,
                codebook);
    fields.number("key_stages", shape.keys.stages);
    fields.number("key_codes", shape.keys.codes);
    fields.number("key_group", shape.keys.group);
    fields.choice("key_norms", shape.keys.norms, kScopeNames, "layer or head");
    fields.number("value_bits", shape.values.bits);
    fields.choice("value_scope", shape.values.scope, kScopeNames, "layer or head");
    const auto has_network = [&] { return shape.values.proposal == ValueProposal::kNetwork; };
    if (fields.has("value_proposal", has_network())) {  // files of linear proposals omit it
      fields.choice("value_proposal", shape.values.proposal, kProposalNames, "linear or network");
    }
    if (fields.has("scales", codebook.scales != 0)) {
      fields.number("scales", codebook.scales, kHexadecimal);
      if constexpr (reads) fields.check(codebook.scales != 0, "scales", "the checksum of scales, if it is there");
    }
    if (has_network() || fields.has("value_hidden", false)) fields.number("value_hidden", shape.values.hidden);
    if constexpr (reads) check_codebook_shape(shape, KVQ_E_FORMAT, "codebook: metadata ");
    each_layer(fields, codebook,
               [&](const Fields<reads>& own, auto& layer, auto& numbers, [[maybe_unused]] int32_t index) {
                 own.amounts("key_errors", std::span(layer.key_errors).first(static_cast<size_t>(shape.keys.stages)),
                             "one number for each stage, finite and not negative");
                 own.amount("value_error", layer.value_error);
                 for_each_array(shape, [&](const CodebookArray& array) {
                   own.tensor(array.name, array.dtype, array.shape, numbers.*array.numbers);
                 });
                 if constexpr (reads) check_layer_codebook(shape, numbers, index, KVQ_E_FORMAT);
               });
  }
};

struct CentresFile {
  static constexpr const char* kContent = "centres";

  template <bool reads>
  static void list_spread(const Fields<reads>& own, const char* field, auto& spread) {
    std::array<double, 4> numbers{spread.largest_offset, spread.imbalance, spread.noise, spread.scaled_noise};
    own.amounts(field, std::span(numbers), "four numbers, finite and not negative");
    if constexpr (reads) spread = {numbers[0], numbers[1], numbers[2], numbers[3]};
  }

  template <bool reads>
  static void list(const Fields<reads>& fields, auto& centres) {
    auto& shape = centres.shape;
    list_header(fields, kCentresType, kRopeNames, "none, half or interleaved", shape.rope, kMaxCentresNote, centres);
    fields.number("key_centres", shape.key_centres);
    fields.number("value_centres", shape.value_centres);
    if (fields.has("key_scales", shape.has_scales())) {  // files without scales omit them
      fields.number("key_scales", shape.key_scales);
      fields.number("value_scales", shape.value_scales);
      if constexpr (reads) fields.check(shape.has_scales(), "key_scales", "1, or value_scales, if they are there");
    }
    if constexpr (reads) check_centres_shape(shape, KVQ_E_FORMAT, "centres: metadata ");
    each_layer(fields, centres,
               [&](const Fields<reads>& own, auto& layer, auto& numbers, [[maybe_unused]] int32_t index) {
                 own.amount("key_residual", layer.key_residual);
                 own.amount("value_residual", layer.value_residual);
                 if (shape.key_scales != 0) list_spread(own, "key_spread", layer.key_spread);
                 if (shape.value_scales != 0) list_spread(own, "value_spread", layer.value_spread);
                 for_each_array(shape, [&](const CentresArray& array) {
                   own.tensor(array.name, KVQ_F16, array.shape, numbers.*array.numbers);
                 });
                 if constexpr (reads) check_layer_centres(shape, numbers, index, KVQ_E_FORMAT);
               });
  }
};

void read_experts(const MetadataFields& fields, Vector<FormatPair>& experts) {
  std::string_view rest = fields.text("experts");
  for (bool more = true; more;) {
    const size_t end = rest.find(kExpertSeparator);
    const std::optional<FormatPair> expert = parse_format_pair(rest.substr(0, end));
    if (!expert.has_value() || experts.size() == kMaxExperts) {
      fields.refuse("experts", "names of formats, separated by \", \", at most 8");
    }
    experts.push_back(*expert);
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + kExpertSeparator.size());
  }
}

struct RouterFile {
  static constexpr const char* kContent = "router";

  template <bool reads>
  static void list(const Fields<reads>& fields, auto& router) {
    auto& shape = router.shape;
    list_header(fields, kRouterType, kRopeNames, "none, half or interleaved", shape.pairing, kMaxRouterNote, router);
    if constexpr (reads) {
      read_experts(fields.file, router.experts);
      shape.n_experts = static_cast<int32_t>(router.experts.size());
      router.expert_bits.resize(router.experts.size());
    } else {
      fields.text("experts", experts_text(fields.allocator, router.experts));
    }
    fields.number("sharing", shape.sharing);
    if constexpr (reads) check_router_shape(shape, KVQ_E_FORMAT, "router: metadata ");
    fields.amounts("expert_bits", std::span(router.expert_bits), "one number for each expert, finite and not negative");
    if constexpr (reads) check_router_experts(router, KVQ_E_FORMAT, "router: metadata ");
    fields.choice("method", router.method, kRouterMethodNames, "label or paper");
    fields.share("lambda", router.lambda);
    fields.amount("mean_bits", router.mean_bits);
    fields.amount("tolerance", router.tolerance);
    fields.share("accuracy", router.accuracy);
    fields.count("tokens", router.tokens);
    if constexpr (reads) {
      size_t arrays = 0;
      for_each_router_array(shape, [&](const RouterArray& /*array*/) { ++arrays; });
      fields.file.check_tensor_count(arrays * static_cast<size_t>(shape.groups()));
      router.groups.resize(static_cast<size_t>(shape.groups()), GroupRouter(fields.allocator));
    }
    for (int32_t i = 0; i < shape.groups(); ++i) {
      list_group(fields.item("groups", i), shape, router.groups[static_cast<size_t>(i)], i);
    }
  }

  template <bool reads>
  static void list_group(const Fields<reads>& own, const RouterShape& shape, auto& group, int32_t index) {
    constexpr const char* kExpected = "one number for each expert, in [0, 1]";
    for_each_router_array(shape, [&](const RouterArray& array) {
      own.tensor(array.name, KVQ_F16, array.shape, group.network.*array.numbers);
    });
    if constexpr (reads) {
      check_router_network(shape, group.network, index, KVQ_E_FORMAT);
      group.shares.resize(static_cast<size_t>(shape.n_experts));
    }
    own.amounts("shares", std::span(group.shares), kExpected);
    if constexpr (reads) {
      for (const double share : group.shares) own.check(share <= 1.0, "shares", kExpected);
    }
    own.share("accuracy", group.accuracy);
  }
};

template <typename Kind, typename Object>
Object read_file(Allocator& allocator, std::span<const std::byte> bytes, Object object) {
  const SafetensorsFile file(allocator, bytes);
  const MetadataFields fields(file, Kind::kContent);
  Kind::list(Fields<true>(allocator, fields), object);
  return object;
}

template <typename Kind>
SafetensorsWriter write_file(Allocator& allocator, const auto& object) {
  SafetensorsWriter file(allocator);
  Kind::list(Fields<false>(allocator, file), object);
  file.finish();
  return file;
}

}  // namespace

ModelCodebook read_codebook(Allocator& allocator, std::span<const std::byte> bytes) {
  return read_file<CodebookFile>(allocator, bytes, ModelCodebook(allocator, {}));
}

ModelCentres read_centres(Allocator& allocator, std::span<const std::byte> bytes) {
  return read_file<CentresFile>(allocator, bytes, ModelCentres(allocator, {}));
}

ModelRouter read_router(Allocator& allocator, std::span<const std::byte> bytes) {
  return read_file<RouterFile>(allocator, bytes, ModelRouter(allocator));
}

SafetensorsWriter codebook_file(Allocator& allocator, const ModelCodebook& codebook) {
  return write_file<CodebookFile>(allocator, codebook);
}

SafetensorsWriter centres_file(Allocator& allocator, const ModelCentres& centres) {
  return write_file<CentresFile>(allocator, centres);
}

SafetensorsWriter router_file(Allocator& allocator, const ModelRouter& router) {
  return write_file<RouterFile>(allocator, router);
}

String experts_text(Allocator& allocator, std::span<const FormatPair> experts) {
  String text(allocator);
  for (const FormatPair& expert : experts) {
    if (!text.empty()) text += kExpertSeparator;
    text += format_pair_name(expert);
  }
  return text;
}

}  // namespace kvq::io
