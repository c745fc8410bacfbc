// Keys, values and queries of a small multi-layer model by token, for tests of sequences over time.
#pragma once

#include "page_format.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/router.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace conformance {

struct Shape {
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t n_layers = 2;

  size_t token_scalars() const { return static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim); }
  size_t query_scalars() const { return static_cast<size_t>(q_heads) * static_cast<size_t>(head_dim); }
  kvq_cache_options options() const { return kvq_test::cache_options(q_heads, kv_heads, head_dim, n_layers); }
};

// Tokens of one text: token t of layer l does not depend on how calls split the text. Other seeds give other texts.
class Text {
 public:
  Text(const Shape& shape, int32_t n, uint64_t seed) : shape_(shape) {
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const size_t scalars = static_cast<size_t>(n) * shape.token_scalars();
      k_.push_back(kvq_test::normal_tensor(scalars, 1000 * seed + 2 * static_cast<uint64_t>(layer)));
      v_.push_back(kvq_test::normal_tensor(scalars, 1000 * seed + 2 * static_cast<uint64_t>(layer) + 1));
    }
  }

  // Appends tokens [begin, end) to every layer, `chunk` tokens per call.
  void append(kvq_sequence* sequence, int32_t begin, int32_t end, int32_t chunk) const {
    for (int32_t at = begin; at < end; at += chunk) {
      const int32_t n = std::min(chunk, end - at);
      const size_t offset = static_cast<size_t>(at) * shape_.token_scalars();
      for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        kvq_test::append(sequence, layer, n, k_[l].data() + offset, v_[l].data() + offset);
      }
    }
  }
  void append(kvq_sequence* sequence, int32_t begin, int32_t end) const { append(sequence, begin, end, end - begin); }

 private:
  Shape shape_;
  std::vector<std::vector<float>> k_;  // per layer [n, kv_heads, head_dim]
  std::vector<std::vector<float>> v_;
};

// Attention of the last `count` tokens of each sequence in one call, with queries that depend only on the sequence's
// index in `queries`: [sequences * count, q_heads, head_dim].
inline std::vector<float> attend_last(const Shape& shape, kvq_cache* cache,
                                      const std::vector<const kvq_sequence*>& sequences, int32_t count,
                                      const std::vector<float>& q, int32_t layer = 0) {
  const std::vector<int32_t> counts(sequences.size(), count);
  std::vector<float> out(sequences.size() * static_cast<size_t>(count) * shape.query_scalars());
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = static_cast<int32_t>(sequences.size());
  batch.sequences = sequences.data();
  batch.query_counts = counts.data();
  batch.q = q.data();
  batch.output = out.data();
  kvq_test::attend(cache, layer, batch);
  return out;
}

inline std::vector<float> queries(const Shape& shape, size_t n, uint64_t seed = 5) {
  return kvq_test::normal_tensor(n * shape.query_scalars(), seed);
}

// Policies for tests of sequences: every format, mixed, by layer, with FP16 pages at both ends.
inline std::vector<std::string> sequence_policies() {
  std::vector<std::string> policies = all_formats();
  policies.emplace_back("version: 1\nkeys: int4+hadamard\nvalues: {format: int2, group: 64}\nsink: 1\nrecent: 2\n");
  policies.emplace_back(
      "version: 1\nkeys: int8\nvalues: int3\nlayers:\n  - {range: [1, 1], keys: fp16, values: int4}\n");
  return policies;
}

// Gain-shape formats: with and without FP16 sink pages, by layer.
inline std::vector<std::string> gain_shape_policies() {
  return {"gs2", "{version: 1, keys: gt2, values: gt1, sink: 0}", "gs4+nocentre",
          "version: 1\nkeys: {format: gs1, centres: none}\nvalues: int8\nrecent: 2\n"
          "layers:\n  - {range: [1, 1], keys: gt3, values: gs3}\n"};
}

// The same with trained centres, by default 5 per head for keys and 3 for values.
inline const std::string kOneCentre = "# one centre\nversion: 1\nkeys: gs2+centres\nvalues: gs2+centres\n";
inline std::vector<std::string> centred_policies() {
  return {"gs2+centres", kOneCentre, "{version: 1, keys: gt2+centres, values: gt1+centres, sink: 0}",
          "version: 1\nkeys: gs4+centres\nvalues: int4\nrecent: 2\n"
          "layers:\n  - {range: [1, 1], keys: gs1, values: gt3+centres}\n"};
}

// The same with CommVQ codes, per layer and per head, and with formats without codes.
inline const std::string kCodesOfLayer = "commvq";
inline const std::string kCodesOfHeads =
    "# codes of each head\nversion: 1\nkeys: commvq\nvalues: commvq\nsink: 1\nrecent: 2\n"
    "commvq: {beam: 2, flips: 100}\n";
inline std::vector<std::string> coded_policies() {
  return {kCodesOfLayer, kCodesOfHeads,
          "version: 1\nkeys: commvq\nvalues: int4\nlayers:\n  - {range: [1, 1], keys: int8, values: commvq}\n"};
}

// Policies with routers: for all heads together, per head, and with CommVQ codes.
inline std::vector<std::string> routed_policies() {
  return {"version: 1\nsink: 1\nrouter: {experts: [fp16, int4, int2]}\n",
          "version: 1\nrecent: 2\nrouter: {experts: [int8/int4, int4+hadamard, int2], votes: head}\n",
          "version: 1\nrouter: {experts: [int4+hadamard, commvq]}\n",
          "version: 1\nrouter: {experts: [gs4, gt2/gs2+nocentre, gt1], votes: head}\n",
          "version: 1\nrouter: {experts: [gs4+centres, gs2/gt2+centres, gt1+centres], votes: head}\n"};
}

// Policies whose pages CUDA graphs can fill.
inline std::vector<std::string> graph_policies() {
  std::vector<std::string> policies = sequence_policies();
  for (const std::string& policy : gain_shape_policies()) policies.push_back(policy);
  for (const std::string& policy : centred_policies()) policies.push_back(policy);
  return policies;
}

inline std::vector<std::string> all_policies() {
  std::vector<std::string> policies = graph_policies();
  for (const std::string& policy : coded_policies()) policies.push_back(policy);
  for (const std::string& policy : routed_policies()) policies.push_back(policy);
  return policies;
}

inline std::vector<std::string> cpu_formats() {
  std::vector<std::string> formats = all_formats();
  formats.insert(formats.end(), {kCodesOfLayer, kCodesOfHeads, "gs2", "gt2+nocentre", "gs2+centres", kOneCentre});
  return formats;
}

// Formats that a policy's router chooses among.
inline std::vector<std::string> experts_of(const std::string& policy) {
  constexpr const char* kBegin = "experts: [";
  const size_t begin = policy.find(kBegin) + std::string(kBegin).size();
  std::string names = policy.substr(begin, policy.find(']', begin) - begin);
  std::vector<std::string> experts;
  for (size_t comma = names.find(", "); comma != std::string::npos; comma = names.find(", ")) {
    experts.push_back(names.substr(0, comma));
    names = names.substr(comma + 2);
  }
  experts.push_back(names);
  return experts;
}

inline kvq_test::Cache make_cache(kvq_context* context, kvq_cache_options options, const std::string& policy) {
  kvq_test::Router router = nullptr;
  if (policy.find("router:") != std::string::npos) {
    router = kvq_test::Router::load(context, kvq_test::TestRouter(options, experts_of(policy)).file());
    options.router = router;
  }
  if (policy == kOneCentre) return kvq_test::make_cache(context, options, policy, {.keys = 1, .values = 1});
  if (policy.find("commvq") == std::string::npos) return kvq_test::make_cache(context, options, policy);
  const bool of_heads = policy.rfind("# codes of each head", 0) == 0;
  const kvq_scope scope = of_heads ? KVQ_SCOPE_HEAD : KVQ_SCOPE_LAYER;
  uint64_t scales = 0;
  if (options.centres != nullptr) {
    auto info = kvq_test::initialised<kvq_centres_info>();
    kvq_test::api::checked(kvq_centres_describe, options.centres, &info);
    if (info.key_scales != 0) scales = info.checksum;
  }
  return kvq_test::make_cache(context, options, policy,
                              {.stages = 2, .codes = 8, .bits = 1, .scope = scope, .norms = scope, .scales = scales});
}

// A step's call for one sequence.
inline void call_step(kvq_status (*function)(kvq_cache*, const kvq_step_batch*, kvq_error*),
                      const kvq_test::Cache& cache, kvq_test::Sequence& sequence, int32_t count) {
  kvq_sequence* pointer = sequence.get();
  auto batch = kvq_test::initialised<kvq_step_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.token_counts = &count;
  kvq_test::api::checked(function, cache.get(), &batch);
}

inline void begin_step(const kvq_test::Cache& cache, kvq_test::Sequence& sequence, int32_t count) {
  call_step(kvq_step_begin, cache, sequence, count);
}

inline void end_step(const kvq_test::Cache& cache, kvq_test::Sequence& sequence, int32_t kept) {
  call_step(kept == 0 ? kvq_step_abort : kvq_step_commit, cache, sequence, kept);
}

}  // namespace conformance
