#include "model_matrices.h"

#include <algorithm>

#include "config_limits.h"

namespace llama {
namespace {

/// Adds the tensors of one part of the model after the other to its shape.
class WeightCounter {
 public:
  WeightCounter(const ConfigFields& fields, ModelShape& shape)
      : fields_(fields), shape_(shape), hidden_(width({"hidden_size", "n_embd", "d_model"})) {}

  void add_ends();
  void add_attention(const LayerShape& layer);
  void add_latent_attention(const LayerShape& layer);
  void add_indexer();
  void add_recurrent();
  void add_mamba();
  void add_convolution();
  void add_mlp(bool twice_as_wide);
  void add_experts();
  void add_layer_norms() { add_other(fields_.integer({"norms"}, 0, 16, 2) * hidden_); }
  void add_layer_embedding();

 private:
  int64_t width(ConfigFields::Names names) const { return fields_.integer(names, 1, kMaxWidth); }
  int64_t heads(ConfigFields::Names names) const { return fields_.integer(names, 1, kMaxHeads); }
  int64_t width_of_layer(ConfigFields::Names names) const;
  int64_t dense_width() const;
  bool is_gated() const;

  void add(const WeightMatrix& matrix) { shape_.matrices.push_back(matrix); }
  void add(int64_t out, int64_t in, bool bias = false) { add({.out = out, .in = in, .bias = bias}); }
  void add_other(int64_t numbers) { shape_.other_numbers += static_cast<uint64_t>(numbers); }
  void add_looked_up(int64_t rows, int64_t columns);
  void add_mlps(int64_t inner, int64_t count, int64_t read);
  void add_delta_net();
  void add_kimi_delta(const ConfigFields& fields);

  const ConfigFields& fields_;
  ModelShape& shape_;
  int64_t hidden_;
};

/// The embedding, the output projection and the last norm.
void WeightCounter::add_ends() {
  const int64_t vocabulary = fields_.integer({"vocab_size", "padded_vocab_size"}, 1, kMaxVocabulary);
  add_other(vocabulary * hidden_ + hidden_);
  if (fields_.flag({"tie_word_embeddings"}, false)) return;
  add_looked_up(vocabulary, hidden_);
}

void WeightCounter::add_looked_up(int64_t rows, int64_t columns) {
  add_other(rows * columns);
  shape_.looked_up_numbers += static_cast<uint64_t>(rows * columns);
}

void WeightCounter::add_attention(const LayerShape& layer) {
  const bool bias = fields_.flag({"attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias"}, false);
  const int64_t gate = fields_.flag({"attn_output_gate"}, false) ? 2 : 1;  // queries and as many gates of outputs
  const bool qk_norm = fields_.flag({"qk_norm", "use_qk_norm"}, false);
  add(layer.q_heads * layer.key_dim * gate, hidden_, bias);
  if (qk_norm) add_other(layer.key_dim);
  if (layer.has_cache()) {
    const bool values_are_keys = layer.mixer == Mixer::kFull && fields_.flag({"attention_k_eq_v"}, false);
    add(layer.kv_heads * layer.key_dim, hidden_, bias);
    if (!values_are_keys) add(layer.kv_heads * layer.value_dim, hidden_, bias);
    if (qk_norm) add_other(layer.key_dim);
  }
  add(hidden_, layer.q_heads * layer.value_dim, fields_.flag({"o_bias"}, bias));
  if (fields_.flag({"attention_sinks"}, false)) add_other(layer.q_heads);
}

void WeightCounter::add_latent_attention(const LayerShape& layer) {
  const int64_t common = layer.value_dim;
  const int64_t rotary = layer.key_dim - common;
  const int64_t plain = width({"qk_nope_head_dim"});
  const int64_t value = width({"v_head_dim"});
  const int64_t queries = layer.q_heads * (plain + rotary);
  if (fields_.has({"q_lora_rank"})) {
    const int64_t rank = width({"q_lora_rank"});
    add(rank, hidden_);
    add(queries, rank);
    add_other(rank);
  } else {
    add(queries, hidden_);
  }
  add(common + rotary, hidden_);
  add(layer.q_heads * (plain + value), common);
  add(hidden_, layer.q_heads * value);
  add_other(common);
}

/// DeepSeek V3.2: a small attention chooses the tokens that the large one reads.
void WeightCounter::add_indexer() {
  if (!fields_.has({"index_head_dim"})) return;
  const int64_t dim = width({"index_head_dim"});
  const int64_t n_heads = heads({"index_n_heads"});
  add(n_heads * dim, width({"q_lora_rank", "hidden_size"}));
  add(dim, hidden_);
  add_other(n_heads * hidden_ + 2 * dim);
}

void WeightCounter::add_recurrent() {
  if (!fields_.has({"linear_attn_config"})) return add_delta_net();
  add_kimi_delta(ConfigFields(fields_.object().object("linear_attn_config")));
}

/// Gated DeltaNet of Qwen3-Next: queries, keys, values and gates, two numbers a head, and a short convolution.
void WeightCounter::add_delta_net() {
  const int64_t value_heads = heads({"linear_num_value_heads"});
  const int64_t value_dim = width({"linear_value_head_dim"});
  const int64_t keys = heads({"linear_num_key_heads"}) * width({"linear_key_head_dim"});
  const int64_t values = value_heads * value_dim;
  add(2 * keys + 2 * values, hidden_);
  add(hidden_, values);
  add_other(2 * value_heads * hidden_ + (2 * keys + values) * width({"linear_conv_kernel_dim"}) + 2 * value_heads +
            value_dim);
}

/// Kimi Delta Attention: gates of channels come from two matrices of low rank.
void WeightCounter::add_kimi_delta(const ConfigFields& fields) {
  const int64_t n_heads = fields.integer({"num_heads"}, 1, kMaxHeads);
  const int64_t dim = fields.integer({"head_dim"}, 1, kMaxHeads);
  const int64_t kernel = fields.integer({"short_conv_kernel_size"}, 1, kMaxHeads);
  const int64_t inner = n_heads * dim;
  for (int i = 0; i < 3; ++i) add(inner, hidden_);
  for (int i = 0; i < 2; ++i) {
    add(dim, hidden_);
    add(inner, dim);
  }
  add(hidden_, inner);
  add_other(n_heads * hidden_ + 3 * inner * kernel + inner + n_heads + dim);
}

void WeightCounter::add_mamba() {
  const int64_t state = width({"mamba_d_state", "ssm_state_size", "state_size"});
  const int64_t kernel = width({"mamba_d_conv", "conv_kernel"});
  if (fields_.has({"mamba_dt_rank"})) {  // the first version
    const int64_t inner = hidden_ * width({"mamba_expand"});
    const int64_t rank = width({"mamba_dt_rank"});
    add(2 * inner, hidden_);
    add(rank + 2 * state, inner);
    add(inner, rank);
    add(hidden_, inner);
    return add_other(inner * (kernel + 1 + state + 2) + rank + 2 * state);
  }
  const int64_t n_heads = heads({"mamba_num_heads", "mamba_n_heads"});
  const int64_t inner = n_heads * width({"mamba_head_dim", "mamba_d_head"});
  const int64_t convolved = inner + 2 * state * heads({"n_groups", "mamba_n_groups"});
  add(inner + convolved + n_heads, hidden_);
  add(hidden_, inner);
  add_other(convolved * (kernel + 1) + inner + 3 * n_heads);
}

/// LFM2: a gated convolution over a few tokens.
void WeightCounter::add_convolution() {
  add(3 * hidden_, hidden_);
  add(hidden_, hidden_);
  add_other(hidden_ * width({"conv_L_cache"}));
}

bool WeightCounter::is_gated() const {
  const std::string activation = fields_.string({"hidden_act", "hidden_activation", "mlp_hidden_act"}, "silu");
  return fields_.flag({"mlp_gate"}, activation != "relu2");
}

void WeightCounter::add_mlps(int64_t inner, int64_t count, int64_t read) {
  const bool bias = fields_.flag({"mlp_bias"}, false);
  const int64_t inputs = is_gated() ? 2 : 1;
  add({.out = inner, .in = hidden_, .count = inputs * count, .bias = bias, .read = read < 0 ? -1 : inputs * read});
  add({.out = hidden_, .in = inner, .count = count, .bias = bias, .read = read});
}

/// A width that may be a list by layer, of equal numbers.
int64_t WeightCounter::width_of_layer(ConfigFields::Names names) const {
  const char* name = *names.begin();
  if (!fields_.is_list(name)) return width(names);
  const std::vector<int64_t> widths = fields_.integers(names);
  if (widths.empty() || std::ranges::adjacent_find(widths, std::ranges::not_equal_to()) != widths.end() ||
      widths.front() < 1 || widths.front() > kMaxWidth) {
    fields_.refuse(name, "expected the same width for every layer");
  }
  return widths.front();
}

/// Of an MLP without experts.
int64_t WeightCounter::dense_width() const {
  const ConfigFields::Names of_llama_4 = {"intermediate_size_mlp"};  // beside a width of experts
  if (fields_.has(of_llama_4)) return width(of_llama_4);
  const bool has_experts = fields_.integer(kExpertCounts, 0, kMaxExperts, 0) > 0;
  const ConfigFields::Names of_granite = {"shared_intermediate_size"};  // the same, even where there are none
  if (!has_experts && fields_.has(of_granite)) return width(of_granite);
  return width_of_layer({"intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"});
}

void WeightCounter::add_mlp(bool twice_as_wide) { add_mlps(twice_as_wide ? 2 * dense_width() : dense_width(), 1, -1); }

void WeightCounter::add_experts() {
  const int64_t experts = fields_.integer(kExpertCounts, 1, kMaxExperts);
  const int64_t chosen = fields_.integer(
      {"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_k"}, 1,
      experts);
  const int64_t inner =
      width({"moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size", "intermediate_size"});
  add_mlps(inner, experts, chosen);
  add_other(experts * (hidden_ + (fields_.flag({"mlp_bias"}, false) ? 1 : 0)));  // the router
  const int64_t shared =
      fields_.integer({"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}, 0, kMaxExperts, 0);
  const ConfigFields::Names shared_widths = {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                                             "shared_intermediate_size"};
  const int64_t shared_inner = fields_.integer(shared_widths, 0, kMaxWidth, shared * inner);
  if (shared_inner == 0) return;
  add_mlps(shared_inner, 1, -1);
  if (fields_.has({"shared_expert_intermediate_size"})) add_other(hidden_);  // its gate
}

/// Gemma 3n and 4: each layer has a small embedding of its own.
void WeightCounter::add_layer_embedding() {
  const int64_t dim = fields_.integer({"hidden_size_per_layer_input"}, 0, kMaxWidth, 0);
  if (dim == 0) return;
  const auto layers = static_cast<int64_t>(shape_.layers.size());
  add_looked_up(fields_.integer({"vocab_size_per_layer_input", "vocab_size"}, 1, kMaxVocabulary), layers * dim);
  add(layers * dim, hidden_);
  add({.out = dim, .in = hidden_, .count = layers});
  add({.out = hidden_, .in = dim, .count = layers});
  add_other(layers * hidden_ + dim);
}

void add_mixer(WeightCounter& counter, const LayerShape& layer) {
  switch (layer.mixer) {
    case Mixer::kFull:
    case Mixer::kWindowed:
      if (!layer.is_latent) return counter.add_attention(layer);
      counter.add_latent_attention(layer);
      return counter.add_indexer();
    case Mixer::kRecurrent:
      return counter.add_recurrent();
    case Mixer::kMamba:
      return counter.add_mamba();
    case Mixer::kConvolution:
      return counter.add_convolution();
    case Mixer::kNone:
      return;
  }
}

/// Count matrices of one shape together, and those that the library cannot pack, whose inputs are no multiple of 64,
/// with the other tensors.
void tidy(ModelShape& shape) {
  std::vector<WeightMatrix> tidied;
  for (const WeightMatrix& each : shape.matrices) {
    if (each.in % 64 != 0) {
      shape.other_numbers += static_cast<uint64_t>(each.parameters());
      continue;
    }
    const auto equal = std::ranges::find_if(tidied, [&](const WeightMatrix& other) {
      return other.out == each.out && other.in == each.in && other.bias == each.bias &&
             (other.read < 0) == (each.read < 0);
    });
    if (equal == tidied.end()) {
      tidied.push_back(each);
      continue;
    }
    equal->count += each.count;
    if (each.read >= 0) equal->read += each.read;
  }
  shape.matrices = std::move(tidied);
}

}  // namespace

void add_weights(const ConfigFields& fields, const std::vector<LayerKind>& kinds, ModelShape& shape) {
  WeightCounter counter(fields, shape);
  counter.add_ends();
  const bool wide_where_shared = fields.flag({"use_double_wide_mlp"}, false);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    add_mixer(counter, layer);
    if (kinds[i].dense) counter.add_mlp(wide_where_shared && layer.reads_layer >= 0);
    if (kinds[i].experts) counter.add_experts();
    counter.add_layer_norms();
  }
  counter.add_layer_embedding();
  tidy(shape);
}

}  // namespace llama
