#include "bench/timed_calls.h"
#include "llama/safetensors.h"
#include "terminal/output.h"

#include <algorithm>
#include <random>

namespace cli {
namespace {

constexpr uint64_t kAppendKeySeed = 4;
constexpr uint64_t kAppendValueSeed = 5;
constexpr uint64_t kMostSequences = 64;  // each of every format grows by its own pages

uint64_t cycle_fp16_bytes(const AppendShape& shape) { return shape.cycle_tokens() * shape.layer.fp16_token_bytes(); }

uint64_t sequences_in_turn(const TimedDevice& device, const AppendShape& shape) {
  if (!shape.is_decoding()) return 1;
  const uint64_t bytes = std::max<uint64_t>(cycle_fp16_bytes(shape), 1);
  return std::clamp<uint64_t>((device.bytes_to_rotate(false) + bytes - 1) / bytes, 1, kMostSequences);
}

// Bytes of `n` pages, each of which takes its share of what all pages take.
uint64_t bytes_of_pages(uint64_t n, uint64_t all_bytes, uint64_t all_pages) {
  return all_pages == 0 ? 0 : n * all_bytes / all_pages;
}

constexpr uint64_t kMostCaches = 256;
constexpr uint64_t kAttentionQuerySeed = 3;  // of the first ones
constexpr size_t kMostQueries = 8;           // to be used in turn, as long as they are small
constexpr size_t kQueryScalars = size_t{1} << 20;

size_t query_scalars(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * static_cast<size_t>(shape.queries) *
         static_cast<size_t>(shape.layer.q_heads) * static_cast<size_t>(shape.layer.head_dim);
}

size_t new_tokens(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch) * static_cast<size_t>(shape.queries);
}

constexpr const char* kName = "w";
constexpr uint64_t kMostMatrices = 256;
constexpr size_t kLeastRecorded = 32;  // calls, so that what surrounds them hardly counts
constexpr uint64_t kWeightSeed = 1;
constexpr uint64_t kLinearInputSeed = 2;

// Size of the block that a matrix repeats: codes of 16 rows lie together, and those of so many columns are whole tiles,
// with odd quarters of a bit, too.
constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 256;

std::vector<std::byte> block_file(kvq_context* context, const std::string& scheme, int64_t columns) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(kBlockRows * columns), kWeightSeed);
  return kvq::Matrix::quantize(context, options, weights, kBlockRows, columns).save(kName);
}

std::vector<std::byte> repeated(std::span<const std::byte> bytes, size_t size) {
  std::vector<std::byte> result(size);
  for (size_t begin = 0; begin < size; begin += bytes.size()) {
    const auto piece = bytes.first(std::min(bytes.size(), size - begin));
    std::ranges::copy(piece, result.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return result;
}

/// A file of a matrix whose codes are those of one block, again and again: to quantize them all would take minutes, and
/// to multiply by them takes as long.
std::vector<std::byte> matrix_file(std::span<const std::byte> block, int64_t columns, int64_t out, int64_t in) {
  llama::SafetensorsContent content = llama::read_safetensors(block, "a block");
  const std::string prefix = std::string(kName) + ".";
  content.metadata[prefix + "out"] = std::to_string(out);
  content.metadata[prefix + "in"] = std::to_string(in);
  const auto shape_of = [&](const llama::TensorView& tensor) -> std::vector<int64_t> {
    if (tensor.name == prefix + "scales") return {out};
    if (tensor.name == prefix + "signs") return {in / 8};
    return {(out + kBlockRows - 1) / kBlockRows, tensor.shape.back() * in / columns};
  };
  std::vector<std::vector<std::byte>> tensors;
  for (llama::TensorView& tensor : content.tensors) {
    const size_t element = tensor.data.size() / static_cast<size_t>(tensor.elements());
    tensor.shape = shape_of(tensor);
    tensor.data = tensors.emplace_back(repeated(tensor.data, element * static_cast<size_t>(tensor.elements())));
  }
  std::vector<std::byte> file;
  llama::write_safetensors(
      content, [&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  return file;
}

}  // namespace

AppendInput::AppendInput(TimedDevice& device, const AppendShape& shape)
    : keys_(random_scalars(device, shape.cycle_tokens() * shape.layer.token_width(), kAppendKeySeed, shape.dtype)),
      values_(random_scalars(device, shape.cycle_tokens() * shape.layer.token_width(), kAppendValueSeed, shape.dtype)),
      stride_(static_cast<size_t>(shape.tokens) * shape.layer.token_width() * bytes_of(shape.dtype)) {}

TimedAppend::TimedAppend(TimedDevice& device, kvq_context* context, const llama::CacheFormat& format,
                         const AppendShape& shape, const AppendInput& input)
    : device_(&device),
      shape_(shape),
      input_(&input),
      cache_(cache_of_layers(context, format, shape.layer)),
      start_(cache_),
      cycles_(sequences_in_turn(device, shape)) {
  append_random(device, std::span(&start_, 1), shape.layer, shape.length);
  bytes_ = input.call_bytes() + bytes_written_in_cycle() / static_cast<uint64_t>(shape.cycle());
  if (!shape.is_decoding()) return;
  for (size_t i = 0; i < cycles_.size(); ++i) {
    sequences_.push_back(start_.fork());
  }
}

void TimedAppend::append(kvq::Sequence& sequence, int32_t call) {
  sequence.append(0, shape_.tokens, input_->keys(call), input_->values(call), shape_.dtype);
}

uint64_t TimedAppend::bytes_written_in_cycle() {
  kvq::Sequence sequence = start_.fork();
  const kvq_usage before = sequence.usage();
  for (int32_t call = 0; call < shape_.cycle(); ++call) append(sequence, call);
  const kvq_usage after = sequence.usage();
  const uint64_t sealed =
      bytes_of_pages(after.sealed_pages - before.sealed_pages, after.sealed_bytes, after.sealed_pages);
  // While decoding every token is written in FP16 first.
  if (shape_.is_decoding()) return sealed + cycle_fp16_bytes(shape_);
  return sealed + bytes_of_pages(after.fp16_pages - before.fp16_pages, after.fp16_bytes, after.fp16_pages);
}

void TimedAppend::time_append(kvq::Sequence& sequence, Cycle& cycle) {
  const double microseconds = device_->time([&] {
    const Stopwatch watch;
    append(sequence, next_);
    cycle.host += watch.microseconds();
  });
  cycle.device += microseconds;
  calls_.push_back(microseconds);
}

void TimedAppend::run() {
  if (shape_.is_decoding()) {
    for (size_t i = 0; i < sequences_.size(); ++i) time_append(sequences_[i], cycles_[i]);
  } else {
    kvq::Sequence fork = start_.fork();
    time_append(fork, cycles_.front());
  }
  next_ = (next_ + 1) % shape_.cycle();
  if (next_ == 0) end_cycle();
}

void TimedAppend::end_cycle() {
  for (Cycle& cycle : cycles_) {
    cycle_means_.push_back(cycle.device / shape_.cycle());
    host_cycle_means_.push_back(cycle.host / shape_.cycle());
    cycle = {};
  }
}

void TimedAppend::clear() {
  calls_.clear();
  cycle_means_.clear();
  host_cycle_means_.clear();
}

AppendTiming TimedAppend::timing() const {
  return {.call = summary(calls_), .mean = median(cycle_means_), .host_mean = median(host_cycle_means_)};
}

uint64_t timing_memory(const TimedDevice& device, const AppendShape& shape, size_t subjects) {
  constexpr uint64_t kRunTokens = uint64_t{32} * KVQ_PAGE_SLOTS;  // pages that a sequence may reserve
  const auto length = static_cast<uint64_t>(shape.length);
  const uint64_t lists = length / KVQ_PAGE_SLOTS * static_cast<uint64_t>(shape.layer.kv_heads) * sizeof(void*);
  const uint64_t cycles = shape.is_decoding() ? kMaxRepetitions / static_cast<uint64_t>(shape.cycle()) + 2 : 1;
  const uint64_t own_tokens = cycles * shape.cycle_tokens() + kRunTokens;
  const uint64_t token_bytes = shape.layer.fp16_token_bytes();
  const uint64_t input = 2 * shape.cycle_tokens() * shape.layer.token_width() * bytes_of(shape.dtype);
  return input +
         subjects * (length * token_bytes + sequences_in_turn(device, shape) * (own_tokens * token_bytes + 2 * lists));
}

namespace {

/// A random draft tree: every query sees the way from its root. [batch, queries, words], or nothing.
std::vector<std::byte> tree_masks(const AttentionShape& shape) {
  constexpr uint64_t kSeed = 7;
  constexpr int32_t kFarthest = 8;  // places to a parent
  if (!shape.tree) return {};
  const auto words = (static_cast<size_t>(shape.queries) + 31) / 32;
  std::mt19937_64 random(kSeed);
  std::vector<uint32_t> masks;
  for (int32_t sequence = 0; sequence < shape.batch; ++sequence) {
    const size_t first = masks.size();
    masks.resize(first + static_cast<size_t>(shape.queries) * words);
    for (int32_t i = 0; i < shape.queries; ++i) {
      uint32_t* row = masks.data() + first + static_cast<size_t>(i) * words;
      const auto back = static_cast<int32_t>(random() % kFarthest) + 1;
      if (i >= back) std::copy_n(row - static_cast<size_t>(back) * words, words, row);
      row[i / 32] |= uint32_t{1} << (i % 32);
    }
  }
  const auto bytes = std::as_bytes(std::span(masks));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

size_t output_scalars(const AttentionShape& shape) {
  return query_scalars(shape) / static_cast<size_t>(shape.layer.head_dim) * static_cast<size_t>(shape.layer.values());
}

std::vector<DeviceBuffer> queries_in_turn(TimedDevice& device, const AttentionShape& shape) {
  const size_t scalars = query_scalars(shape);
  std::vector<DeviceBuffer> queries;
  for (size_t i = 0; i < std::clamp<size_t>(kQueryScalars / scalars, 1, kMostQueries); ++i) {
    queries.push_back(random_scalars(device, scalars, kAttentionQuerySeed + i));
  }
  return queries;
}

TimedAttention::TimedAttention(TimedDevice& device, kvq_context* context, const Spec& format,
                               const AttentionShape& shape)
    : device_(&device),
      cache_(cache_of_layers(context, format, shape.layer)),
      queries_(queries_in_turn(device, shape)),
      out_(device.upload(std::vector<std::byte>(output_scalars(shape) * sizeof(float)))),
      mask_(device.upload(tree_masks(shape))),
      has_mask_(shape.tree),
      n_queries_(shape.queries) {
  fill_first(shape);
  if (format.evicts()) compress_first(format, shape);
  for (const kvq::Sequence& sequence : batches_.front()) {
    bytes_ += kv_bytes(sequence.usage());
    bits_ = sequence.usage().bits_per_scalar;
  }
  const uint64_t wanted = std::min(device.bytes_to_rotate(false), shape.most_bytes);
  copy_first(std::clamp<uint64_t>((wanted + bytes_ - 1) / bytes_, 1, kMostCaches) - 1);
}

void TimedAttention::fill_first(const AttentionShape& shape) {
  SequenceBatch batch;
  for (int32_t i = 0; i < shape.batch; ++i) batch.emplace_back(cache_);
  append_random(*device_, batch, shape.layer, shape.length);
  batches_.push_back(std::move(batch));
}

// As after a prompt of random tokens, whose last queries are random too.
void TimedAttention::compress_first(const Spec& format, const AttentionShape& shape) {
  const int32_t window = std::min(format.policy.describe().eviction_window, shape.length);
  auto options = kvq::initialised<kvq_compress_options>();
  options.budget = format.budget_after(shape.length);
  for (kvq::Sequence& sequence : batches_.front()) {
    attend_random(*device_, cache_, sequence, shape.layer, window);
    sequence.compress(options);
  }
}

// By way of snapshots, which is faster than encoding everything again. A fork would share the pages.
void TimedAttention::copy_first(uint64_t copies) {
  if (copies == 0) return;
  std::vector<std::vector<std::byte>> snapshots;
  for (const kvq::Sequence& sequence : batches_.front()) {
    snapshots.push_back(sequence.save());
  }
  for (uint64_t i = 0; i < copies; ++i) {
    SequenceBatch batch;
    for (const std::vector<std::byte>& snapshot : snapshots) {
      batch.push_back(kvq::Sequence::load(cache_, snapshot));
    }
    batches_.push_back(std::move(batch));
  }
}

double TimedAttention::run() {
  const auto sequences = kvq::pointers(batches_[runs_ % batches_.size()]);
  const std::vector<int32_t> counts(sequences.size(), n_queries_);
  auto batch = kvq::initialised<kvq_attend_batch>();
  batch.n_sequences = static_cast<int32_t>(sequences.size());
  batch.sequences = sequences.data();
  batch.query_counts = counts.data();
  batch.q = queries_[runs_ % queries_.size()].get();
  batch.output = out_.get();
  if (has_mask_) {
    batch.mask = static_cast<const uint32_t*>(mask_.get());
    batch.mask_slots = n_queries_;
  }
  ++runs_;
  const auto attend = [&] { cache_.attend(0, batch); };
  if (device_->forgets_instructions()) attend();
  return device_->time(attend);
}

TimedExtend::TimedExtend(TimedDevice& device, kvq_context* context, const Spec& format, const AttentionShape& shape)
    : device_(&device),
      shape_(shape),
      cache_(cache_of_layers(context, format, shape.layer)),
      reserves_(format.router.get() == nullptr),
      keys_(random_scalars(device, new_tokens(shape) * shape.layer.token_width(), kAppendKeySeed)),
      values_(random_scalars(device, new_tokens(shape) * shape.layer.value_width(), kAppendValueSeed)),
      queries_(random_scalars(device, query_scalars(shape), kAttentionQuerySeed)),
      out_(device.upload(std::vector<std::byte>(output_scalars(shape) * sizeof(float)))) {
  for (int32_t i = 0; i < shape.batch; ++i) start_.emplace_back(cache_);
  append_random(device, start_, shape.layer, shape.length - shape.queries);
  std::vector<kvq::Sequence> sequences = forks();
  extend(sequences);
  for (const kvq::Sequence& sequence : sequences) {
    bytes_ += kv_bytes(sequence.usage());
    bits_ = sequence.usage().bits_per_scalar;
  }
}

std::vector<kvq::Sequence> TimedExtend::forks() const {
  std::vector<kvq::Sequence> forks;
  for (const kvq::Sequence& sequence : start_) {
    forks.push_back(sequence.fork());
    if (reserves_) forks.back().reserve(shape_.queries);
  }
  return forks;
}

void TimedExtend::extend(std::span<kvq::Sequence> sequences) {
  const auto pointers = kvq::pointers(sequences);
  const std::vector<int32_t> counts(pointers.size(), shape_.queries);
  auto batch = kvq::initialised<kvq_extend_batch>();
  batch.n_sequences = static_cast<int32_t>(pointers.size());
  batch.sequences = pointers.data();
  batch.token_counts = counts.data();
  batch.k = keys_.get();
  batch.v = shape_.layer.latent ? nullptr : values_.get();
  batch.q = queries_.get();
  batch.output = out_.get();
  cache_.extend(0, batch);
}

double TimedExtend::run() {
  if (device_->forgets_instructions()) {
    std::vector<kvq::Sequence> first = forks();
    extend(first);
  }
  std::vector<kvq::Sequence> sequences = forks();
  return device_->time([&] { extend(sequences); });
}

uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects) {
  const uint64_t fp16 =
      shape.layer.fp16_token_bytes() * static_cast<uint64_t>(shape.length) * static_cast<uint64_t>(shape.batch);
  return subjects * (fp16 + device.bytes_to_rotate(false));
}

int64_t LinearShape::all_outputs() const { return std::accumulate(also.begin(), also.end(), out); }

const std::vector<std::byte>& RandomMatrices::file(int64_t out, int64_t in) {
  std::vector<std::byte>& file = files_[{out, in}];
  if (!file.empty()) return file;
  const int64_t columns = std::gcd(in, kBlockColumns);
  std::vector<std::byte>& block = blocks_[columns];
  if (block.empty()) block = block_file(context_, scheme_, columns);
  file = matrix_file(block, columns, out, in);
  return file;
}

kvq::Matrix RandomMatrices::load(int64_t out, int64_t in) { return kvq::Matrix::load(context_, file(out, in), kName); }

TimedLinear::TimedLinear(TimedDevice& device, kvq_context* context, const Tuning& tuning, const std::string& scheme,
                         const LinearShape& shape)
    : device_(&device),
      x_(random_scalars(device, static_cast<size_t>(shape.batch * shape.in), kLinearInputSeed, shape.dtype)),
      batch_(shape.batch),
      dtype_(shape.dtype) {
  RandomMatrices random(context, scheme);
  load(random, shape);
  for (const kvq::Matrix& matrix : layers_.front()) {
    const qp_matrix_info info = matrix.describe();
    bytes_ += info.bytes;
    bits_ = info.bits;
    const size_t outputs = static_cast<size_t>(shape.batch * info.rows);
    y_.push_back(device.upload(std::vector<std::byte>(outputs * bytes_of(shape.dtype))));
  }
  tuning.measure(kvq::pointers(layers_.front()), batch_);
  multiply(layers_.front());  // a matrix may make work space when it first sees a batch of this size
  const uint64_t wanted = std::min(device.bytes_to_rotate(shape.recorded), shape.most_bytes);
  while (layers_.size() * bytes_ < wanted && layers_.size() < kMostMatrices) {
    load(random, shape);
    multiply(layers_.back());
  }
  if (shape.recorded) record(context);
}

void TimedLinear::load(RandomMatrices& random, const LinearShape& shape) {
  Layer& layer = layers_.emplace_back();
  layer.push_back(random.load(shape.out, shape.in));
  for (const int64_t out : shape.also) layer.push_back(random.load(out, shape.in));
}

void TimedLinear::multiply(const Layer& layer) {
  std::vector<void*> outputs;
  for (const DeviceBuffer& y : y_) outputs.push_back(y.get());
  kvq::Matrix::linear_shared(kvq::pointers(layer), x_.get(), batch_, outputs, dtype_);
}

void TimedLinear::record(kvq_context* context) {
  recorded_calls_ = std::max(layers_.size(), kLeastRecorded);
  recorded_ = device_->record(context, [this] {
    for (size_t call = 0; call < recorded_calls_; ++call) multiply(layers_[call % layers_.size()]);
  });
}

double TimedLinear::run() {
  if (recorded_) return device_->time(recorded_) / static_cast<double>(recorded_calls_);
  const Layer& layer = layers_[runs_++ % layers_.size()];
  const auto call = [&] { multiply(layer); };
  if (device_->forgets_instructions()) call();
  return device_->time(call);
}

uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects) {
  const auto outputs = static_cast<uint64_t>(shape.all_outputs());
  const uint64_t fp16 = outputs * static_cast<uint64_t>(shape.in) * 2;
  const uint64_t rows = static_cast<uint64_t>(shape.batch) * (static_cast<uint64_t>(shape.in) + outputs);
  return subjects * (fp16 + device.bytes_to_rotate(shape.recorded) + rows * bytes_of(shape.dtype)) + 2 * fp16;
}

}  // namespace cli
