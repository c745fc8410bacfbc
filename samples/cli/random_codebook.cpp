#include "random_codebook.h"

#include "codebook_training.h"

namespace cli {
namespace {

constexpr int32_t kTokens = 1024;
constexpr uint64_t kKeySeed = 11;
constexpr uint64_t kValueSeed = 12;

llama::CodebookHandle train_on_random(kvq_context* context, int32_t bits, kvq_scope scope, const LayerShape& shape) {
  kvq_codebook_trainer_options options;
  kvq_codebook_trainer_options_init(&options);
  options.n_layers = 1;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.key_stages = key_stages(bits, shape.head_dim);
  options.key_norms = scope;
  options.value_bits = bits;
  options.value_scope = scope;
  options.key_rounds = 1;
  options.value_rounds = 1;
  const llama::CodebookTrainerHandle trainer = llama::make_codebook_trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  const std::vector<float> keys = normal_numbers(scalars, kKeySeed);
  const std::vector<float> values = normal_numbers(scalars, kValueSeed);
  llama::checked([&](kvq_error* error) {
    return kvq_codebook_trainer_add(trainer.get(), 0, kTokens, keys.data(), values.data(), KVQ_F32, error);
  });
  llama::checked([&](kvq_error* error) { return kvq_codebook_trainer_run(trainer.get(), 0, nullptr, nullptr, error); });
  return llama::trainer_result(trainer.get());
}

}  // namespace

Spec load_layer_spec(kvq_context* context, const std::string& spec, const LayerShape& shape) {
  for (const int32_t bits : {1, 2}) {
    const std::string name = "commvq:random-" + std::to_string(bits) + "bit";
    if (spec != name && spec != name + ",head") continue;
    const kvq_scope scope = spec == name ? KVQ_SCOPE_LAYER : KVQ_SCOPE_HEAD;
    return {llama::load_policy(context, "commvq"), train_on_random(context, bits, scope, shape)};
  }
  return load_spec(context, spec);
}

}  // namespace cli
