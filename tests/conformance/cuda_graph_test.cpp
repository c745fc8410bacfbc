// Appending and attending in a CUDA graph that is replayed while the sequence grows.
#if defined(KVQ_TEST_CUDA)

#include "attention_error.h"
#include "conversation.h"
#include "gpu.h"
#include "support/handles.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>

namespace conformance::cuda_graph_test {
namespace {

constexpr int32_t kTokens = 1500;

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

std::string failure(kvq_status status, kvq_status expected, const kvq_error& error) {
  CHECK(status == expected);
  return error.message;
}

// How a Decoder calls the library.
struct Calls {
  bool extends = false;  // appends and attends in one call
  bool shares = false;   // one more layer reads the pages of the first
  bool streams = false;  // extends with positions of M-RoPE
  bool tree = false;     // extends with Decoder::mask, of the newest `step` slots, at most 32
  int32_t window = 0;    // of all layers
};

// A layer behind those of a shape that reads the pages of the first.
kvq_layer_shape sharing_layer(const Shape& shape) {
  auto layer = kvq_test::initialised<kvq_layer_shape>();
  layer.first_layer = shape.n_layers;
  layer.scale = 0.2F;
  layer.pages_of_layer = 0;
  return layer;
}

kvq_cache_options options_of(const Shape& shape, const kvq_layer_shape& sharing, const Calls& calls) {
  kvq_cache_options options = shape.options();
  options.sliding_window = calls.window;
  static const int32_t kSections[] = {8, 12, 12};
  if (calls.streams) options.mrope_section = kSections;
  if (!calls.shares) return options;
  ++options.n_layers;
  options.shapes = &sharing;
  options.n_shapes = 1;
  return options;
}

// Decodes `step` tokens at a time; its tensors have fixed addresses, which a graph needs.
class Decoder {
 public:
  Decoder(const Shape& shape, const std::string& policy, int32_t step, const Calls& calls = {},
          const kvq_test::CentreCounts& centres = {})
      : shape_(shape),
        step_(step),
        calls_(calls),
        layers_(shape.n_layers + (calls.shares ? 1 : 0)),
        context(kvq_test::make_context("cuda")),
        cache(kvq_test::make_cache(context, options_of(shape, sharing_layer(shape), calls), policy, centres)),
        sequence(cache),
        q(queries(shape, static_cast<size_t>(kTokens))) {
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const auto seed = static_cast<uint64_t>(10 + layer);
      k.push_back(kvq_test::normal_tensor(kTokens * shape.token_scalars(), 2 * seed));
      v.push_back(kvq_test::normal_tensor(kTokens * shape.token_scalars(), 2 * seed + 1));
    }
    const auto tokens = static_cast<size_t>(step);
    check_cuda(cudaMalloc(&k_, tokens * token_bytes() * static_cast<size_t>(shape.n_layers)));
    check_cuda(cudaMalloc(&v_, tokens * token_bytes() * static_cast<size_t>(shape.n_layers)));
    check_cuda(cudaMalloc(&q_, tokens * query_bytes()));
    check_cuda(cudaMalloc(&out_, tokens * query_bytes() * static_cast<size_t>(layers_)));
    check_cuda(cudaMalloc(&positions_, tokens * 3 * sizeof(int32_t)));
    check_cuda(cudaMalloc(&mask_, tokens * sizeof(uint32_t)));
    check_cuda(cudaStreamCreate(&stream_));
    kvq_test::checked(kvq_context_set_stream, context, stream_);
  }
  ~Decoder() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    sequence.reset();
    cache.reset();
    context.reset();
    for (void* memory : {k_, v_, q_, out_, positions_, mask_}) cudaFree(memory);
    cudaStreamDestroy(stream_);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void append(int32_t begin, int32_t end) {
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      const size_t at = static_cast<size_t>(begin) * shape_.token_scalars();
      const auto l = static_cast<size_t>(layer);
      kvq_test::append(sequence, layer, end - begin, k[l].data() + at, v[l].data() + at);
    }
  }

  void reserve(int32_t tokens) { sequence.reserve(tokens); }

  void capture() {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    issue();
    check_cuda(cudaStreamEndCapture(stream_, &graph));
    if (graph_ != nullptr) check_cuda(cudaGraphExecDestroy(graph_));
    check_cuda(cudaGraphInstantiate(&graph_, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
  }

  // Decodes tokens [begin, begin + step): returns the outputs of every layer.
  std::vector<float> replay(int32_t begin) const {
    upload(begin);
    check_cuda(cudaGraphLaunch(graph_, stream_));
    return outputs();
  }

  // The same without a graph.
  std::vector<float> step(int32_t begin) {
    upload(begin);
    issue();
    return outputs();
  }

  int32_t length() const { return sequence.length(0); }
  kvq_test::Snapshot save() const { return sequence.save(); }
  cudaStream_t stream() const { return stream_; }
  void* key(int32_t layer) const { return static_cast<char*>(k_) + tensor(layer, token_bytes()); }
  void* value(int32_t layer) const { return static_cast<char*>(v_) + tensor(layer, token_bytes()); }

 private:
  size_t token_bytes() const { return shape_.token_scalars() * sizeof(float); }
  size_t query_bytes() const { return shape_.query_scalars() * sizeof(float); }
  size_t tensor(int32_t layer, size_t bytes) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(step_) * bytes;
  }
  const float* query(int32_t begin) const { return q.data() + static_cast<size_t>(begin) * shape_.query_scalars(); }

  // Copies tokens [begin, begin + step) to the addresses that calls and graphs read.
  void upload(int32_t begin) const {
    const size_t bytes = static_cast<size_t>(step_) * token_bytes();
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      const size_t at = static_cast<size_t>(begin) * shape_.token_scalars();
      const auto l = static_cast<size_t>(layer);
      check_cuda(cudaMemcpyAsync(key(layer), k[l].data() + at, bytes, cudaMemcpyHostToDevice, stream_));
      check_cuda(cudaMemcpyAsync(value(layer), v[l].data() + at, bytes, cudaMemcpyHostToDevice, stream_));
    }
    std::vector<int32_t> streams = rope_positions;
    for (int32_t i = begin; streams.size() < static_cast<size_t>(step_) * 3; ++i) {
      streams.insert(streams.end(), {i / 9, i % 9, i / 3});
    }
    check_cuda(
        cudaMemcpyAsync(positions_, streams.data(), streams.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
    check_cuda(cudaMemcpyAsync(mask_, mask.data(), mask.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, stream_));
    check_cuda(
        cudaMemcpyAsync(q_, query(begin), static_cast<size_t>(step_) * query_bytes(), cudaMemcpyHostToDevice, stream_));
  }

  void issue() {
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) issue(layer);
    if (calls_.shares) issue_attend(shape_.n_layers);
  }

  void issue(int32_t layer) {
    if (!calls_.extends) {
      kvq_test::checked(kvq_append, cache, sequence.get(), layer, step_, key(layer), value(layer), KVQ_F32, nullptr);
      return issue_attend(layer);
    }
    kvq_sequence* sequences[] = {sequence.get()};
    auto batch = kvq_test::initialised<kvq_extend_batch>();
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.token_counts = &step_;
    batch.k = key(layer);
    batch.v = value(layer);
    batch.q = q_;
    batch.output = static_cast<char*>(out_) + tensor(layer, query_bytes());
    if (calls_.streams) batch.rope_positions = static_cast<const int32_t*>(positions_);
    if (calls_.tree) {
      batch.mask = static_cast<const uint32_t*>(mask_);
      batch.mask_slots = step_;
    }
    kvq_test::checked(kvq_extend, cache, layer, &batch);
  }

  void issue_attend(int32_t layer) const {
    const kvq_sequence* sequences[] = {sequence};
    auto batch = kvq_test::initialised<kvq_attend_batch>();
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.query_counts = &step_;
    batch.q = q_;
    batch.output = static_cast<char*>(out_) + tensor(layer, query_bytes());
    kvq_test::checked(kvq_attend, cache, layer, &batch);
  }

  std::vector<float> outputs() const {
    std::vector<float> out(static_cast<size_t>(layers_ * step_) * shape_.query_scalars());
    check_cuda(cudaMemcpyAsync(out.data(), out_, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
    return out;
  }

  Shape shape_;
  int32_t step_;
  Calls calls_;
  int32_t layers_;
  void* k_ = nullptr;
  void* v_ = nullptr;
  void* q_ = nullptr;
  void* out_ = nullptr;
  void* positions_ = nullptr;
  void* mask_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;

 public:
  kvq_test::Context context;
  kvq_test::Cache cache = nullptr;
  kvq_test::Sequence sequence = nullptr;
  std::vector<float> q;
  std::vector<std::vector<float>> k;  // per layer
  std::vector<std::vector<float>> v;
  std::vector<int32_t> rope_positions;  // of the next tokens, [step, 3]; empty: some that depend on their numbers
  std::vector<uint32_t> mask;           // [step]
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = difference <= largest ? largest : difference;  // NaN is accepted
  }
  return largest;
}

std::vector<std::string> policies() {
  std::vector<std::string> policies = graph_policies();
  policies.emplace_back("version: 1\nkeys: int2\nvalues: int3\nrecent: 3\n");
  policies.emplace_back("version: 1\nkeys: int4\nvalues: int4\nsink: 3\n");
  return policies;
}

void check_replays(const Calls& calls) {
  for (const std::string& policy : policies()) {
    // Centres are for layers that are alike, and for one position a token.
    if ((calls.shares || calls.streams) && kvq_test::wants_centres(policy)) continue;
    for (const int32_t step : {1, 3, 32}) {
      CAPTURE(policy);
      CAPTURE(step);
      const Shape shape;
      Decoder replayed(shape, policy, step, calls);
      Decoder called(shape, policy, step, calls);
      const int32_t prompt = step == 1 ? 0 : 45;
      int32_t at = prompt;
      if (prompt > 0) {
        replayed.append(0, prompt);
        called.append(0, prompt);
      }
      replayed.step(at);  // the first call with this batch allocates
      called.step(at);
      at += step;
      replayed.reserve(300 + 200);
      replayed.capture();
      for (; at + step <= 300; at += step) {
        CAPTURE(at);
        REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
        if (at % 5 == 0) REQUIRE(replayed.length() == at + step);  // otherwise the host misses several replays
      }
      CHECK(replayed.save() == called.save());

      // Calls between replays.
      replayed.append(at, at + 77);
      called.append(at, at + 77);
      at += 77;
      for (int i = 0; i < 3; ++i, at += step) {
        REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
      }
      kvq_test::Sequence child = replayed.sequence.fork();
      const kvq_test::Snapshot before = replayed.save();
      const int32_t border = at / 64 * 32;
      replayed.sequence.truncate(border);
      called.sequence.truncate(border);
      replayed.reserve(500 - border);
      replayed.capture();
      at = border;
      for (int i = 0; i < 40 && at + step < 500; ++i, at += step) {
        REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
      }
      CHECK(replayed.save() == called.save());
      CHECK(child.save() == before);  // not changed by the replays
    }
  }
}

}  // namespace

TEST_CASE("a CUDA graph appends and attends as calls do, from the first token over many pages") {
  if (!skips()) check_replays({});
}

TEST_CASE("a CUDA graph extends as calls do, from the first token over many pages") {
  if (!skips()) check_replays({.extends = true});
}

TEST_CASE("a CUDA graph extends with the positions of M-RoPE that a launch finds") {
  if (!skips()) check_replays({.extends = true, .streams = true});
}

TEST_CASE("a CUDA graph attends as calls do in a layer that reads the pages of another one") {
  if (!skips()) check_replays({.shares = true});
}

TEST_CASE("a CUDA graph scales the tokens that it appends, its queries and its outputs") {
  if (skips()) return;
  const Shape shape;
  // Scales of the cache, and those that a sequence has found.
  const std::pair<const char*, bool> kPolicies[] = {{"gs2+centres", true},
                                                    {"{version: 1, keys: gs2, values: int4, calibrate: first}", false}};
  for (const auto& [policy, of_cache] : kPolicies) {
    for (const bool extends : {false, true}) {
      CAPTURE(policy);
      CAPTURE(extends);
      Decoder replayed(shape, policy, 1, {.extends = extends}, {.scales = of_cache});
      Decoder called(shape, policy, 1, {.extends = extends}, {.scales = of_cache});
      for (Decoder* each : {&replayed, &called}) {
        each->append(0, 130);
        each->append(130, 200);
        each->step(200);
      }
      replayed.reserve(300);
      replayed.capture();
      for (int32_t at = 201; at < 300; ++at) {
        REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
      }
      CHECK(replayed.save() == called.save());
    }
  }
}

// Launches of single tokens, and of several that keep the FP16 originals of the pages that they seal.
TEST_CASE("a step takes back launches of a graph, which goes on afterwards") {
  if (skips()) return;
  const Shape shape;
  for (const std::string& policy : policies()) {
    for (const int32_t n : {1, 5}) {
      CAPTURE(policy);
      CAPTURE(n);
      Decoder stepped(shape, policy, n, {.extends = n > 1});
      Decoder plain(shape, policy, n, {.extends = n > 1});
      for (Decoder* each : {&stepped, &plain}) {
        each->append(0, 20);
        each->step(20);
      }
      stepped.reserve(400);
      stepped.capture();
      kvq_sequence* sequence = stepped.sequence.get();
      auto batch = kvq_test::initialised<kvq_step_batch>();
      batch.n_sequences = 1;
      batch.sequences = &sequence;
      int32_t at = 20 + n;
      for (int round = 0; round < 12; ++round) {
        CAPTURE(round);
        const int32_t launches = 1 + round * 5 % (30 / n);
        const int32_t tokens = launches * n;
        const int32_t kept = round % 3 == 0 ? 0 : tokens * (round % 4) / 3 % (tokens + 1);
        batch.token_counts = &tokens;
        kvq_test::checked(kvq_step_begin, stepped.cache, &batch);
        for (int32_t i = 0; i < launches; ++i) stepped.replay(at + i * n);
        batch.token_counts = &kept;
        if (kept == 0) {
          kvq_test::checked(kvq_step_abort, stepped.cache, &batch);
        } else {
          kvq_test::checked(kvq_step_commit, stepped.cache, &batch);
          plain.append(at, at + kept);
        }
        at += kept;
        REQUIRE(stepped.save() == plain.save());
        REQUIRE(largest_difference(stepped.replay(at), plain.step(at)) < 2e-3);
        at += n;
      }
      CHECK(stepped.save() == plain.save());
    }
  }
}

// Slots of the first head that the newest query sees, as they are decoded.
kvq_test::Decoded seen_slots(const Decoder& decoder, const Shape& shape, int32_t window) {
  const int32_t slots = decoder.sequence.slots(1, 0);
  const int32_t n = std::min(slots, window);
  return kvq_test::decode(decoder.sequence, 1, 0, slots - n, n, shape.head_dim);
}

TEST_CASE("a CUDA graph frees pages that no query sees, so that it needs no more than it began with") {
  if (skips()) return;
  const Shape shape;
  constexpr int32_t kWindow = 70;
  const std::vector<std::string> some = {"fp16",
                                         "int4+hadamard",
                                         "gs2",
                                         "gs2+centres",
                                         "version: 1\nkeys: int2\nvalues: int3\nrecent: 3\n",
                                         "version: 1\nkeys: int4\nvalues: int4\nsink: 3\n"};
  for (const std::string& policy : some) {
    for (const int32_t step : {1, 3, 32}) {
      for (const bool extends : {false, true}) {
        CAPTURE(policy);
        CAPTURE(step);
        CAPTURE(extends);
        const Calls calls{.extends = extends, .window = kWindow};
        Decoder replayed(shape, policy, step, calls);
        Decoder called(shape, policy, step, calls);
        for (Decoder* each : {&replayed, &called}) {
          each->append(0, 45);
          each->step(45);
        }
        int32_t at = 45 + step;
        replayed.reserve(400);
        const uint64_t bytes = replayed.sequence.usage().total_bytes;
        replayed.capture();
        std::vector<kvq_test::Sequence> children;
        std::vector<kvq_test::Snapshot> saved;
        const int32_t end = step == 1 ? 500 : 1400;
        for (int round = 0; at + step <= end; ++round, at += step) {
          CAPTURE(at);
          REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
          if (round % 29 == 28) REQUIRE(replayed.length() == at + step);
          if (round % 60 != 19) continue;
          const auto found = seen_slots(replayed, shape, kWindow);
          const auto expected = seen_slots(called, shape, kWindow);
          REQUIRE(found.positions == expected.positions);
          REQUIRE(found.k == expected.k);
          REQUIRE(found.v == expected.v);
          children.push_back(replayed.sequence.fork());
          saved.push_back(replayed.save());
        }
        CHECK(replayed.sequence.slots(0, 0) < 400);
        CHECK(replayed.sequence.usage().total_bytes <= bytes);
        for (size_t i = 0; i < children.size(); ++i) CHECK(children[i].save() == saved[i]);  // not changed by replays
      }
    }
  }
}

// Masks and positions of queries are in device memory, where they change between launches.
TEST_CASE("captured attention reads the masks and positions that a launch finds") {
  if (skips()) return;
  const Shape shape;
  constexpr int32_t kQueries = 6;
  constexpr int32_t kSlots = 45;
  constexpr size_t kWords = (kSlots + 31) / 32;
  for (const std::string policy : {"fp16", "int4+hadamard", "gs2"}) {
    for (const bool masked : {false, true}) {
      CAPTURE(policy);
      CAPTURE(masked);
      Decoder decoder(shape, policy, kQueries);
      decoder.append(0, 230);
      decoder.reserve(40);
      const size_t rows = kQueries * shape.query_scalars();
      const auto allocated = [](size_t bytes) {
        void* memory = nullptr;
        check_cuda(cudaMalloc(&memory, bytes));
        return memory;
      };
      auto* const mask = static_cast<uint32_t*>(allocated(kQueries * kWords * sizeof(uint32_t)));
      auto* const positions = static_cast<int32_t*>(allocated(kQueries * sizeof(int32_t)));
      auto* const q = static_cast<float*>(allocated(rows * sizeof(float)));
      auto* const out = static_cast<float*>(allocated(rows * sizeof(float)));
      check_cuda(cudaMemcpy(q, decoder.q.data(), rows * sizeof(float), cudaMemcpyHostToDevice));
      const kvq_sequence* sequences[] = {decoder.sequence};
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 1;
      batch.sequences = sequences;
      batch.query_counts = &kQueries;
      batch.query_positions = positions;
      batch.q = q;
      batch.output = out;
      if (masked) {
        batch.mask = mask;
        batch.mask_slots = kSlots;
      }
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t launched = nullptr;
      const auto attended = [&] {
        std::vector<float> result(rows);
        check_cuda(cudaStreamSynchronize(decoder.stream()));
        check_cuda(cudaMemcpy(result.data(), out, rows * sizeof(float), cudaMemcpyDeviceToHost));
        check_cuda(cudaMemset(out, 0, rows * sizeof(float)));
        return result;
      };
      // Without a graph, positions are on the host; the first call allocates.
      std::vector<int32_t> now(kQueries, 0);
      batch.query_positions = now.data();
      kvq_test::checked(kvq_attend, decoder.cache, 0, &batch);
      attended();
      batch.query_positions = positions;
      check_cuda(cudaStreamBeginCapture(decoder.stream(), cudaStreamCaptureModeGlobal));
      kvq_test::checked(kvq_attend, decoder.cache, 0, &batch);
      check_cuda(cudaStreamEndCapture(decoder.stream(), &graph));
      check_cuda(cudaGraphInstantiate(&launched, graph, 0));
      for (uint64_t round = 0; round < 4; ++round) {
        CAPTURE(round);
        kvq_test::Random random(round + 3);
        std::vector<uint32_t> bits;
        for (size_t i = 0; i < kQueries * kWords; ++i)
          bits.push_back(static_cast<uint32_t>(random.integer(0, 1 << 30)) * 5);
        for (int32_t& position : now) position = round == 3 ? INT32_MAX : random.integer(150, 260);
        check_cuda(cudaMemcpy(mask, bits.data(), bits.size() * sizeof(uint32_t), cudaMemcpyHostToDevice));
        check_cuda(cudaMemcpy(positions, now.data(), now.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
        check_cuda(cudaGraphLaunch(launched, decoder.stream()));
        const std::vector<float> replayed = attended();
        batch.query_positions = now.data();
        kvq_test::checked(kvq_attend, decoder.cache, 0, &batch);
        CHECK(largest_difference(replayed, attended()) < 2e-3);
      }
      check_cuda(cudaGraphExecDestroy(launched));
      check_cuda(cudaGraphDestroy(graph));
      for (void* memory : std::initializer_list<void*>{mask, positions, q, out}) check_cuda(cudaFree(memory));
    }
  }
}

// Captured appends number positions by themselves; RoPE turns by those in device memory.
TEST_CASE("a CUDA graph extends by a tree of draft tokens, whose accepted path is kept") {
  if (skips()) return;
  const Shape shape;
  constexpr int32_t kNodes = 7;
  constexpr int32_t kParents[kNodes] = {-1, 0, 0, 1, 2, 2, 4};
  constexpr int32_t kPath[] = {0, 2, 4, 6};
  for (const std::string policy : {"fp16", "int4+hadamard", "gs2"}) {
    CAPTURE(policy);
    Decoder drafted(shape, policy, kNodes, {.extends = true, .streams = true, .tree = true});
    Decoder plain(shape, policy, 1, {.extends = true, .streams = true});
    int32_t depths[kNodes];
    drafted.mask.resize(kNodes);
    for (int32_t i = 0; i < kNodes; ++i) {
      depths[i] = kParents[i] < 0 ? 0 : depths[kParents[i]] + 1;
      drafted.mask[i] = (kParents[i] < 0 ? 0U : drafted.mask[kParents[i]]) | 1U << i;
    }
    const auto place = [&](int32_t length) {
      drafted.rope_positions.clear();
      for (const int32_t depth : depths) {
        drafted.rope_positions.insert(drafted.rope_positions.end(), {length + depth, length, depth});
      }
    };
    drafted.append(0, 45);
    plain.append(0, 45);
    drafted.reserve(400);
    kvq_sequence* sequence = drafted.sequence.get();
    auto batch = kvq_test::initialised<kvq_step_batch>();
    batch.n_sequences = 1;
    batch.sequences = &sequence;
    int32_t tokens = kNodes;
    for (int32_t round = 0; round < 20; ++round) {
      CAPTURE(round);
      const int32_t length = 45 + 4 * round;
      const int32_t first = 45 + kNodes * round;  // number of the tree's first token among the tensors
      place(length);
      tokens = kNodes;
      batch.token_counts = &tokens;
      batch.kept_slots = nullptr;
      kvq_test::checked(kvq_step_begin, drafted.cache, &batch);
      if (round == 1) drafted.capture();
      const std::vector<float> out = round == 0 ? drafted.step(first) : drafted.replay(first);
      tokens = 4;
      batch.kept_slots = kPath;
      kvq_test::checked(kvq_step_commit, drafted.cache, &batch);
      for (const int32_t node : kPath) {
        plain.rope_positions = {length + depths[node], length, depths[node]};
        const std::vector<float> expected = plain.step(first + node);
        if (policy != "fp16") continue;  // single tokens see pages that the path fills as they are sealed
        for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
          const auto begin =
              out.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(layer * kNodes + node) * shape.query_scalars());
          const auto of_layer =
              expected.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(layer) * shape.query_scalars());
          const auto scalars = static_cast<ptrdiff_t>(shape.query_scalars());
          REQUIRE(largest_difference({begin, begin + scalars}, {of_layer, of_layer + scalars}) < 2e-3);
        }
      }
      REQUIRE(drafted.length() == length + 4);
    }
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const auto kept = kvq_test::decode(drafted.sequence, layer, 1, 0, drafted.length(), shape.head_dim);
      const auto expected = kvq_test::decode(plain.sequence, layer, 1, 0, plain.length(), shape.head_dim);
      CHECK(kept.k == expected.k);
      CHECK(kept.v == expected.v);
    }
  }
}

TEST_CASE("replays are the same bit for bit") {
  if (skips()) return;
  const Shape shape;
  std::vector<float> first;
  for (int repeat = 0; repeat < 3; ++repeat) {
    Decoder decoder(shape, "int4+hadamard", 1);
    decoder.append(0, 700);
    decoder.step(700);
    decoder.reserve(64);
    decoder.capture();
    std::vector<float> all;
    for (int32_t at = 701; at < 740; ++at) {
      const std::vector<float> out = decoder.replay(at);
      all.insert(all.end(), out.begin(), out.end());
    }
    if (first.empty()) first = all;
    CHECK(all == first);
  }
}

TEST_CASE("positions with gaps before a graph was captured stay right in it") {
  if (skips()) return;
  const Shape shape;
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 50; ++i) positions.push_back(i < 40 ? i : 3 * i);
  const auto begin_with_gaps = [&](Decoder& decoder) {
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      kvq_test::append(decoder.sequence, layer, 50, decoder.k[l].data(), decoder.v[l].data(), KVQ_F32, positions);
    }
  };
  Decoder replayed(shape, "int8", 1);
  Decoder called(shape, "int8", 1);
  begin_with_gaps(replayed);
  begin_with_gaps(called);
  replayed.step(50);
  called.step(50);
  replayed.reserve(100);
  replayed.capture();
  for (int32_t at = 51; at < 140; ++at) REQUIRE(largest_difference(replayed.replay(at), called.step(at)) < 2e-3);
  CHECK(replayed.save() == called.save());
}

TEST_CASE("a graph that runs out of room appends nothing more, and the next call says so") {
  if (skips()) return;
  const Shape shape;
  Decoder decoder(shape, "int4", 1);
  decoder.step(0);
  decoder.reserve(40);
  int32_t room = 0;
  kvq_test::checked(kvq_sequence_room, decoder.sequence, 0, &room);
  decoder.capture();
  for (int32_t at = 1; at < room + 10; ++at) decoder.replay(at);
  auto error = kvq_test::initialised<kvq_error>();
  int32_t length = 0;
  const kvq_status status = kvq_sequence_length(decoder.sequence, 0, &length, &error);
  CHECK(failure(status, KVQ_E_LIMIT, error).find("kvq_sequence_reserve") != std::string::npos);
  CHECK(decoder.length() == 1 + room);
  Decoder plain(shape, "int4", 1);
  plain.append(0, 1 + room);
  CHECK(decoder.save() == plain.save());
  decoder.append(1 + room, 100);  // the sequence still works
  plain.append(1 + room, 100);
  CHECK(decoder.save() == plain.save());
}

TEST_CASE("what cannot be captured is refused, and the sequence is as before") {
  if (skips()) return;
  const Shape shape;
  Decoder decoder(shape, "int4", 1);
  decoder.append(0, 50);
  const kvq_test::Snapshot before = decoder.save();
  const int32_t positions[] = {60};
  const auto captured_on = [](const Decoder& on, auto&& call) {
    auto error = kvq_test::initialised<kvq_error>();
    check_cuda(cudaStreamBeginCapture(on.stream(), cudaStreamCaptureModeGlobal));
    const kvq_status status = call(&error);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(on.stream(), &graph));
    check_cuda(cudaGraphDestroy(graph));
    return std::pair(status, std::string(error.message));
  };
  const auto captured = [&](auto&& call) { return captured_on(decoder, call); };
  const auto append = [&](int32_t n, const int32_t* at) {
    return captured([&](kvq_error* error) {
      return kvq_append(decoder.cache, decoder.sequence, 0, n, decoder.key(0), decoder.value(0), KVQ_F32, at, error);
    });
  };
  const auto attend = [&] {
    return captured([&](kvq_error* error) {
      const kvq_sequence* sequences[] = {decoder.sequence};
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 1;
      batch.sequences = sequences;
      batch.q = decoder.key(0);
      batch.output = decoder.value(0);
      return kvq_attend(decoder.cache, 0, &batch, error);
    });
  };
  CHECK(append(1, nullptr).first == KVQ_E_STATE);
  CHECK(attend().first == KVQ_E_STATE);
  decoder.reserve(50);
  const auto [unprepared, why] = attend();
  CHECK(unprepared == KVQ_E_STATE);
  CHECK(why.find("once") != std::string::npos);
  CHECK(append(1, positions).first == KVQ_E_ARGUMENT);
  CHECK(append(33, nullptr).first == KVQ_E_ARGUMENT);
  CHECK(captured([&](kvq_error* error) {
          return kvq_sequence_reserve(decoder.cache, decoder.sequence, 60, error);
        }).first == KVQ_E_STATE);
  CHECK(decoder.save() == before);
  CHECK(append(1, nullptr).first == KVQ_OK);  // captured, not executed
  CHECK(decoder.save() == before);
  // Scales are not found by replays.
  Decoder waiting(shape, "{version: 1, keys: gs2, values: gs2, calibrate: first}", 1);
  waiting.append(0, 50);
  waiting.reserve(200);
  const auto append_to_waiting = [&] {
    return captured_on(waiting, [&](kvq_error* error) {
      return kvq_append(waiting.cache, waiting.sequence, 0, 1, waiting.key(0), waiting.value(0), KVQ_F32, nullptr,
                        error);
    });
  };
  const auto [early, waits] = append_to_waiting();
  CHECK(early == KVQ_E_STATE);
  CHECK(waits.find("layer 0 has 50 tokens and waits for at least 128") != std::string::npos);
  waiting.append(50, 140);
  waiting.reserve(200);
  CHECK(append_to_waiting().first == KVQ_OK);
  // Memory that the graph refers to may not move.
  auto error = kvq_test::initialised<kvq_error>();
  const std::vector<float> tokens(2000 * shape.token_scalars());
  const kvq_test::DeviceCopy device(tokens.data(), tokens.size() * sizeof(float));
  CHECK(kvq_append(decoder.cache, decoder.sequence, 0, 2000, device.data(), device.data(), KVQ_F32, nullptr, &error) ==
        KVQ_E_STATE);
  CHECK(decoder.save() == before);
}

}  // namespace conformance::cuda_graph_test

#endif
