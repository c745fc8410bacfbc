#include "io/file_kind.h"

#include "core/error.h"
#include "io/matrix_file.h"
#include "io/plan_document.h"
#include "io/snapshot.h"
#include "io/trained_files.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace kvq::io {
namespace {

constexpr std::array<std::pair<std::string_view, kvq_file_kind>, 4> kTypes = {{{kCodebookType, KVQ_FILE_CODEBOOK},
                                                                               {kCentresType, KVQ_FILE_CENTRES},
                                                                               {kRouterType, KVQ_FILE_ROUTER},
                                                                               {kMatrixType, KVQ_FILE_MATRIX}}};

/// What `read` returns; nothing if the bytes are not in its format.
template <typename Read>
std::optional<kvq_file_kind> unless_malformed(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.status() != KVQ_E_FORMAT) throw;
    return {};
  }
}

kvq_file_kind kind_of(const SafetensorsFile& file) {
  const String* type = file.metadata("type");
  if (type == nullptr) return KVQ_FILE_UNKNOWN;
  const auto* found = std::ranges::find_if(kTypes, [type](const auto& each) { return *type == each.first; });
  return found != kTypes.end() ? found->second : KVQ_FILE_UNKNOWN;
}

kvq_file_kind kind_of(const YamlNode& root) {
  if (is_plan(root)) return KVQ_FILE_PLAN;
  return root.member("version") != nullptr ? KVQ_FILE_POLICY : KVQ_FILE_UNKNOWN;
}

}  // namespace

kvq_file_kind file_kind(Allocator& allocator, std::span<const std::byte> bytes) {
  if (is_snapshot(bytes)) return KVQ_FILE_SNAPSHOT;
  if (const auto kind = unless_malformed([&] { return kind_of(SafetensorsFile(allocator, bytes)); })) return *kind;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return unless_malformed([&] { return kind_of(parse_yaml(text, kMaxPlanBytes)); }).value_or(KVQ_FILE_UNKNOWN);
}

}  // namespace kvq::io
