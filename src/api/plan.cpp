#include "api/boundary.h"
#include "api/handles.h"
#include "core/text.h"
#include "io/matrix_file.h"
#include "io/plan_document.h"

using namespace kvq;
using namespace kvq::api;

struct kvq_plan : io::PlanDocument {
  kvq_plan(kvq_context& owner, io::PlanDocument&& plan) : io::PlanDocument(std::move(plan)), context(owner) {}

  Kept<kvq_context> context;
};

namespace {

void take_matrices(const kvq_plan_content& content, io::PlanDocument& plan) {
  require_range(content.n_matrices, 0, static_cast<int64_t>(io::kMaxPlanMatrices), "content->n_matrices");
  if (content.n_matrices > 0) {
    require(content.names, "content->names");
    require(content.schemes, "content->schemes");
  }
  for (int32_t i = 0; i < content.n_matrices; ++i) {
    require_entry(content.names[i], "content->names", i);
    require_entry(content.schemes[i], "content->schemes", i);
    const std::string_view name = content.names[i];
    if (name.empty()) fail(KVQ_E_ARGUMENT, "content->names[%d] is empty", i);
    io::check_plan_text(name, io::kMaxMatrixName, "a name of content->names");
    const std::optional<weights::Scheme> scheme = weights::parse_scheme(content.schemes[i]);
    if (!scheme.has_value()) {
      fail(KVQ_E_ARGUMENT, "content->schemes[%d] is \"%s\", must be the name of a scheme, like tcx-3", i,
           Quoted(content.schemes[i]).c_str());
    }
    plan.add(name, *scheme);
  }
  plan.seal();
}

io::PlanDocument plan_of(kvq_context& context, const kvq_plan_content& content) {
  io::PlanDocument plan(context.allocator);
  require_amount(content.bytes, "content->bytes");
  require_amount(content.seconds, "content->seconds");
  require_amount(content.loss, "content->loss");
  plan.expected = {content.bytes, content.seconds, content.loss};
  if (content.note != nullptr) {
    io::check_plan_text(content.note, io::kMaxPlanNote, "content->note");
    plan.note = content.note;
  }
  if (content.policy != nullptr) {
    require_context(context, *content.policy, "content->policy");
    plan.policy.emplace(*content.policy);
  }
  take_matrices(content, plan);
  return plan;
}

}  // namespace

void kvq_plan_content_init(kvq_plan_content* content, size_t size) { init_struct(content, size, kvq_plan_content{}); }

kvq_status kvq_plan_create(kvq_context* context, const kvq_plan_content* content, kvq_plan** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    const kvq_plan_content given = read_struct(content, kvq_plan_content{}, "content");
    require(result, "result");
    return make_owned<kvq_plan>(context->allocator, *context, plan_of(*context, given));
  });
}

kvq_status kvq_plan_load(kvq_context* context, const char* yaml, size_t length, kvq_plan** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    require(yaml, "yaml");
    require(result, "result");
    return make_owned<kvq_plan>(context->allocator, *context, io::read_plan(context->allocator, {yaml, length}));
  });
}

kvq_status kvq_plan_save(const kvq_plan* plan, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(plan, "plan");
    require(size, "size");
    hand_over(io::plan_yaml(*plan), buffer, capacity, *size);
  });
}

kvq_status kvq_plan_describe(const kvq_plan* plan, kvq_plan_info* info, kvq_error* error) {
  return described(plan, "plan", info, error, [](const kvq_plan& of) {
    kvq_plan_info found{};
    found.n_matrices = static_cast<int32_t>(of.matrices.size());
    found.has_policy = of.policy.has_value() ? 1 : 0;
    found.bytes = of.expected[solver::kBytes];
    found.seconds = of.expected[solver::kSeconds];
    found.loss = of.expected[solver::kLoss];
    found.note = of.note.c_str();
    return found;
  });
}

kvq_status kvq_plan_describe_matrix(const kvq_plan* plan, int32_t index, kvq_plan_matrix_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(plan, "plan");
    require_range(index, 0, static_cast<int64_t>(plan->matrices.size()) - 1, "index");
    const io::PlanDocument::Matrix& matrix = plan->matrices[static_cast<size_t>(index)];
    kvq_plan_matrix_info found{};
    found.name = matrix.name.c_str();
    found.scheme = qp_scheme_name(weights::index_of(matrix.scheme));
    write_struct(info, found, "info");
  });
}

const char* kvq_plan_scheme(const kvq_plan* plan, const char* name) {
  if (plan == nullptr || name == nullptr) return nullptr;
  const io::PlanDocument::Matrix* matrix = plan->find(name);
  return matrix != nullptr ? qp_scheme_name(weights::index_of(matrix->scheme)) : nullptr;
}

kvq_status kvq_plan_policy(const kvq_plan* plan, kvq_policy** result, kvq_error* error) {
  return created(result, error, [&] {
    require(plan, "plan");
    require(result, "result");
    if (!plan->policy.has_value()) fail(KVQ_E_STATE, "the plan has no policy");
    kvq_context& context = *plan->context;
    return make_owned<kvq_policy>(context.allocator, context, Policy(*plan->policy));
  });
}

void kvq_plan_destroy(kvq_plan* plan) { destroy(plan); }
