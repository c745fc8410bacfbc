#include "io/router_file.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/router/model_router.h"
#include "io/metadata_fields.h"

#include <array>
#include <cmath>

namespace kvq::io {
namespace {

constexpr std::string_view kRouterType = "kvq.router";
constexpr std::string_view kSeparator = ", ";
constexpr std::array<const char*, 2> kRouterMethodNames = {"label", "paper"};  // by RouterMethod

/// "groups.<index>.<field>".
struct GroupKey : ItemKey {
  GroupKey(int32_t index, const char* field) : ItemKey("groups", index, field) {}
};

/// A number that is finite, from 0 to `most`.
double read_amount(const MetadataFields& fields, const char* key, double most, const char* expected) {
  const double value = fields.amount(key);
  if (value > most) fields.refuse(key, expected);
  return value;
}

void read_experts(const MetadataFields& fields, Vector<FormatPair>& experts) {
  std::string_view rest = fields.text("experts");
  for (bool more = true; more;) {
    const size_t end = rest.find(kSeparator);
    const std::optional<FormatPair> expert = parse_format_pair(rest.substr(0, end));
    if (!expert.has_value() || experts.size() == kMaxExperts) {
      fields.refuse("experts", "names of formats, separated by \", \", at most 8");
    }
    experts.push_back(*expert);
    more = end != std::string_view::npos;
    if (more) rest.remove_prefix(end + kSeparator.size());
  }
}

RouterShape read_shape(const MetadataFields& fields, const TrainedHeader& header, size_t n_experts) {
  RouterShape shape;
  shape.n_layers = header.n_layers;
  shape.kv_heads = header.kv_heads;
  shape.head_dim = header.head_dim;
  shape.pairing = header.rope;
  shape.sharing = fields.number<int32_t>("sharing");
  shape.n_experts = static_cast<int32_t>(n_experts);
  check_router_shape(shape, KVQ_E_FORMAT, "router: metadata ");
  return shape;
}

void read_training(const MetadataFields& fields, ModelRouter& router) {
  router.method = static_cast<RouterMethod>(fields.choice("method", kRouterMethodNames, "label or paper"));
  router.lambda = read_amount(fields, "lambda", 1.0, "in [0, 1]");
  router.mean_bits = fields.amount("mean_bits");
  router.tolerance = fields.amount("tolerance");
  router.accuracy = read_amount(fields, "accuracy", 1.0, "in [0, 1]");
  router.tokens = fields.number<int64_t>("tokens");
  if (router.tokens < 0) fields.refuse("tokens", "not negative");
}

GroupRouter read_group(Allocator& allocator, const MetadataFields& fields, const RouterShape& shape, int32_t index) {
  GroupRouter group(allocator);
  for_each_router_array(shape, [&](const RouterArray& array) {
    fields.read_tensor(GroupKey(index, array.name).c_str(), KVQ_F16, array.shape, group.network.*array.numbers);
  });
  check_router_network(shape, group.network, index, KVQ_E_FORMAT);
  group.shares.resize(static_cast<size_t>(shape.n_experts));
  fields.amounts(GroupKey(index, "shares").c_str(), group.shares, "one number for each expert, in [0, 1]");
  for (const double share : group.shares) {
    if (share > 1.0) fields.refuse(GroupKey(index, "shares").c_str(), "one number for each expert, in [0, 1]");
  }
  group.accuracy = read_amount(fields, GroupKey(index, "accuracy").c_str(), 1.0, "in [0, 1]");
  return group;
}

}  // namespace

ModelRouter read_router(Allocator& allocator, std::span<const std::byte> bytes) {
  const SafetensorsFile file(allocator, bytes);
  const MetadataFields fields(file, "router");
  const TrainedHeader header = read_header(fields, kRouterType, kRouterFileVersion, KVQ_ROPE_NONE, kMaxRouterNote);
  ModelRouter router(allocator);
  router.model_id = header.model_id;
  router.seed = header.seed;
  router.note = header.note;
  read_experts(fields, router.experts);
  router.shape = read_shape(fields, header, router.experts.size());
  router.expert_bits.resize(router.experts.size());
  fields.amounts("expert_bits", router.expert_bits, "one number for each expert, finite and not negative");
  check_router_experts(router, KVQ_E_FORMAT, "router: metadata ");
  read_training(fields, router);
  size_t arrays = 0;
  for_each_router_array(router.shape, [&](const RouterArray& /*array*/) { ++arrays; });
  fields.check_tensor_count(arrays * static_cast<size_t>(router.shape.groups()));
  router.groups.reserve(static_cast<size_t>(router.shape.groups()));
  for (int32_t i = 0; i < router.shape.groups(); ++i) {
    router.groups.push_back(read_group(allocator, fields, router.shape, i));
  }
  return router;
}

SafetensorsWriter router_file(Allocator& allocator, const ModelRouter& router) {
  SafetensorsWriter file(allocator);
  const RouterShape& shape = router.shape;
  add_header(file, kRouterType, kRouterFileVersion,
             {.n_layers = shape.n_layers,
              .kv_heads = shape.kv_heads,
              .head_dim = shape.head_dim,
              .rope = shape.pairing,
              .model_id = router.model_id,
              .seed = router.seed,
              .note = router.note});
  file.add_metadata("sharing", NumberText(shape.sharing));
  file.add_metadata("experts", experts_text(allocator, router.experts));
  file.add_metadata("expert_bits", list_text(allocator, router.expert_bits));
  file.add_metadata("method", kRouterMethodNames[static_cast<size_t>(router.method)]);
  file.add_metadata("lambda", NumberText(router.lambda));
  file.add_metadata("mean_bits", NumberText(router.mean_bits));
  file.add_metadata("tolerance", NumberText(router.tolerance));
  file.add_metadata("accuracy", NumberText(router.accuracy));
  file.add_metadata("tokens", NumberText(router.tokens));
  for (int32_t i = 0; i < shape.groups(); ++i) {
    const GroupRouter& group = router.groups[static_cast<size_t>(i)];
    file.add_metadata(GroupKey(i, "shares").c_str(), list_text(allocator, group.shares));
    file.add_metadata(GroupKey(i, "accuracy").c_str(), NumberText(group.accuracy));
    for_each_router_array(shape, [&](const RouterArray& array) {
      file.add_tensor(GroupKey(i, array.name).c_str(), KVQ_F16, array.shape, group.network.*array.numbers);
    });
  }
  file.finish();
  return file;
}

String experts_text(Allocator& allocator, std::span<const FormatPair> experts) {
  String text{StlAllocator<char>(allocator)};
  for (const FormatPair& expert : experts) {
    if (!text.empty()) text += kSeparator;
    text += format_pair_name(expert);
  }
  return text;
}

}  // namespace kvq::io
