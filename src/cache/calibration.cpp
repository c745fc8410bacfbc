#include "cache/calibration.h"

#include "cache/sequence.h"
#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"
#include "formats/channel_scales.h"
#include "formats/float16/layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvq {
namespace {

// Tokens count as different from this distance of their values on, in units of what unrelated ones have.
constexpr double kDifferent = 0.3;
constexpr double kMeanShare = 0.2;  // of a channel's mean, beside its spread: all but equal tokens have no spread
constexpr double kLeastDifferent = 16.0;
constexpr size_t kMostCompared = 256;

/// The first tokens of one head's list, [tokens][channels], on the host.
struct HeadTokens {
  HeadTokens(Allocator& allocator, size_t tokens, const HeadShape& head)
      : keys(tokens * static_cast<size_t>(head.keys), 0.0F, allocator),
        values(tokens * static_cast<size_t>(head.values), 0.0F, allocator),
        positions(tokens, 0, allocator) {}

  Vector<float> keys;  // after RoPE
  Vector<float> values;
  Vector<int32_t> positions;
};

HeadTokens first_tokens(const Sequence& sequence, int32_t layer, int32_t head, int32_t tokens) {
  Allocator& allocator = sequence.cache.allocator;
  const int32_t key_dim = sequence.cache.layer(layer).head.keys;
  const int32_t value_dim = sequence.cache.layer(layer).head.values;
  HeadTokens found(allocator, static_cast<size_t>(tokens), sequence.cache.layer(layer).head);
  for (size_t page = 0; page < static_cast<size_t>(tokens / kPageSlots); ++page) {
    const size_t first = page * kPageSlots;
    decode_page(sequence, layer, head, page, 0, kPageSlots,
                {found.keys.data() + first * static_cast<size_t>(key_dim),
                 found.values.data() + first * static_cast<size_t>(value_dim), found.positions.data() + first},
                allocator);
  }
  return found;
}

/// Means and variances of channels over `rows` rows.
void add_moments(std::span<const float> numbers, size_t rows, std::span<double> means, std::span<double> variances) {
  const size_t dim = means.size();
  const auto n = static_cast<double>(rows);
  std::ranges::fill(means, 0.0);
  for (size_t i = 0; i < rows * dim; ++i) means[i % dim] += double{numbers[i]} / n;
  for (size_t i = 0; i < rows * dim; ++i) {
    const double difference = double{numbers[i]} - means[i % dim];
    variances[i % dim] += difference * difference / n;
  }
}

/// Effective number of different tokens among the first ones: Σ 1 / (tokens near one). By values, which RoPE does not
/// turn: in the first layer, equal tokens have equal ones.
double different_tokens(const Sequence& sequence, int32_t layer, int32_t head, int32_t tokens) {
  Cache& cache = sequence.cache;
  const auto dim = static_cast<size_t>(cache.layer(layer).head.values);
  const HeadTokens found = first_tokens(sequence, layer, head, tokens);
  const size_t step = std::max<size_t>(static_cast<size_t>(tokens) / kMostCompared, 1);
  const size_t n = static_cast<size_t>(tokens) / step;
  Vector<float> values(size(n, dim), 0.0F, cache.allocator);
  for (size_t i = 0; i < n; ++i) {
    std::copy_n(found.values.data() + i * step * dim, dim, values.data() + i * dim);
  }
  Vector<double> means(dim, 0.0, cache.allocator);
  Vector<double> variances(dim, 0.0, cache.allocator);
  add_moments(values, n, means, variances);
  for (size_t i = 0; i < values.size(); ++i) {
    const double mean = kMeanShare * means[i % dim];
    const double spread = std::sqrt(variances[i % dim] + mean * mean);
    values[i] = spread > 0.0 ? static_cast<float>(values[i] / spread) : 0.0F;
  }
  const auto near = static_cast<float>(kDifferent * kDifferent * 2.0 * static_cast<double>(dim));
  double different = 0.0;
  for (size_t i = 0; i < n; ++i) {
    int32_t alike = 0;
    for (size_t j = 0; j < n; ++j) {
      float distance = 0.0F;
      for (size_t c = 0; c < dim && distance < near; ++c) {
        const float difference = values[i * dim + c] - values[j * dim + c];
        distance += difference * difference;
      }
      alike += distance < near ? 1 : 0;
    }
    different += 1.0 / std::max(alike, 1);
  }
  return different;
}

bool is_varied(const Sequence& sequence, int32_t layer, int32_t tokens) {
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    if (different_tokens(sequence, layer, head, tokens) < kLeastDifferent) return false;
  }
  return true;
}

/// Whether a layer has its first tokens as they were given.
bool has_first_tokens(const Sequence& sequence, int32_t layer, int32_t tokens) {
  if (!sequence.waits(layer)) return false;
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    if (sequence.slots(layer, head) < tokens) return false;
  }
  return true;
}

/// Tokens whose channels give the scales; 0: not yet, −1: none ever will. `alike` is how many have been found too
/// alike, before and after. The first layer decides where it can: there, a value is that of its token, while later ones
/// make equal tokens differ a little.
int32_t tokens_to_use(const Sequence& sequence, int32_t layer, int32_t& alike) {
  const Calibration::Layer& first = sequence.calibration->layer(0);
  if (layer > 0 && first.scales != nullptr) {
    const int32_t tokens = first.scales->tokens();
    return has_first_tokens(sequence, layer, tokens) ? tokens : 0;
  }
  if (layer > 0 && first.given_up) return has_first_tokens(sequence, layer, kMostCalibrationTokens) ? -1 : 0;
  alike = std::max(alike, first.alike);
  while (alike < kMostCalibrationTokens) {
    const int32_t tokens = std::max(2 * alike, kCalibrationTokens);
    if (!has_first_tokens(sequence, layer, tokens)) return 0;
    if (is_varied(sequence, has_first_tokens(sequence, 0, tokens) ? 0 : layer, tokens)) return tokens;
    alike = tokens;
  }
  return -1;
}

/// What reads the values of a latent: queries, of these energies, and as much again the outputs, evenly.
void add_outputs(std::span<const double> queries, Vector<double>& read) {
  const double mean = std::accumulate(queries.begin(), queries.end(), 0.0) / static_cast<double>(queries.size());
  read.reserve(queries.size());
  for (const double energy : queries) read.push_back(energy + mean);
}

/// Append the scales of one head.
void find_head(const Sequence& sequence, int32_t layer, int32_t head, int32_t tokens, std::span<const double> queries,
               Vector<float>& numbers) {
  const Cache& cache = sequence.cache;
  Allocator& allocator = sequence.cache.allocator;
  const LayerShape& shape = cache.layer(layer);
  const auto key_dim = static_cast<size_t>(shape.head.keys);
  const auto value_dim = static_cast<size_t>(shape.head.values);
  const HeadTokens found = first_tokens(sequence, layer, head, tokens);
  ChannelEnergies keys(allocator, key_dim);
  ChannelEnergies values(allocator, value_dim);
  Vector<double> key_means(key_dim, 0.0, allocator);
  Vector<double> means(value_dim, 0.0, allocator);
  // What pages leave: keys are stored relative to their page's mean.
  for (size_t page = 0; page < static_cast<size_t>(tokens / kPageSlots); ++page) {
    const std::span<const float> of_page(found.keys.data() + page * kPageSlots * key_dim, kPageSlots * key_dim);
    add_moments(of_page, kPageSlots, key_means, keys.stored);
  }
  add_moments(found.values, static_cast<size_t>(tokens), means, values.stored);
  const auto before = std::min(queries.size(), static_cast<size_t>(shape.head.before_keys()));
  keys.read.assign(queries.begin() + static_cast<ptrdiff_t>(before), queries.end());
  values.read.clear();
  if (before > 0) add_outputs(queries.first(before), values.read);
  for (int32_t pair = 0; pair < shape.rope->pairs(); ++pair) {
    keys.join(shape.rope->first_channel(pair), shape.rope->second_channel(pair));
  }
  const Vector<float> of_keys = find_scales(allocator, keys, false);
  const Vector<float> of_values = find_scales(allocator, values, false);
  Vector<float> offsets(allocator);
  offsets.reserve(value_dim);
  for (const double mean : means) {
    const double offset = std::clamp(mean, -double{kMaxValueOffset}, double{kMaxValueOffset});
    offsets.push_back(from_float16(to_float16(static_cast<float>(offset))));
  }
  append_head_scales(numbers, of_keys, of_values, offsets, shape.head);
}

Vector<float> find_numbers(const Sequence& sequence, int32_t layer, int32_t tokens) {
  const Cache& cache = sequence.cache;
  const LayerShape& shape = cache.layer(layer);
  const auto dim = static_cast<size_t>(shape.head.whole_key());
  const Vector<double> queries = sequence.calibration->layer(layer).queries.sums(tokens, sequence.cache.allocator);
  Vector<float> numbers(sequence.cache.allocator);
  numbers.reserve(LayerScales::floats(shape.kv_heads, shape.head));
  append_scales_header(numbers, true);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const std::span<const double> of_head =
        queries.empty() ? std::span<const double>() : std::span(queries).subspan(static_cast<size_t>(head) * dim, dim);
    find_head(sequence, layer, head, tokens, of_head, numbers);
  }
  return numbers;
}

}  // namespace

int32_t calibration_tokens(const Sequence& sequence, int32_t layer) {
  if (!has_first_tokens(sequence, layer, kCalibrationTokens)) return 0;
  int32_t alike = sequence.calibration->layer(layer).alike;
  return tokens_to_use(sequence, layer, alike);
}

FoundScales::FoundScales(Cache& cache, const LayerShape& layer, Vector<float> numbers, int32_t tokens)
    : numbers_(std::move(numbers)), memory_(cache.backend, cache.allocator), tokens_(tokens), bytes_(bytes_of(layer)) {
  memory_.make(numbers_.size() * sizeof(float));
  cache.backend.pages().upload(numbers_.data(), memory_.bytes(), memory_.data());
}

uint64_t FoundScales::bytes_of(const LayerShape& layer) {
  static const size_t shared = shared_bytes<FoundScales>();
  return shared + uint64_t{2} * LayerScales::floats(layer.kv_heads, layer.head) * sizeof(float);
}

uint64_t QueryEnergies::bytes_of(const LayerShape& layer) {
  return kParts * static_cast<uint64_t>(layer.kv_heads) * static_cast<uint64_t>(layer.head.whole_key()) *
         sizeof(double);
}

size_t QueryEnergies::part_of(int32_t position) {
  size_t part = 0;
  for (int32_t end = kCalibrationTokens; position >= end; end *= 2) ++part;
  return part;
}

void QueryEnergies::add(const AttendBatch& batch, const AttendSequence& sequence, Pages& pages, Allocator& scratch) {
  const auto positions = batch.query_positions.subspan(static_cast<size_t>(sequence.query_begin),
                                                       static_cast<size_t>(sequence.query_count));
  const auto counts = [this](int32_t position) { return position >= next_ && position < kMostCalibrationTokens; };
  const auto last = std::find_if(positions.rbegin(), positions.rend(), counts);
  if (last == positions.rend()) return;
  const auto n = static_cast<size_t>(positions.rend() - last);
  const auto dim = static_cast<size_t>(batch.head.whole_key());
  const auto heads = static_cast<size_t>(batch.q_heads);
  const size_t of_kv_head = heads / static_cast<size_t>(batch.kv_heads);
  const auto first = static_cast<size_t>(sequence.query_begin);
  const size_t begin = batch.q_strides.at(first, 0);
  const size_t end = batch.q_strides.at(first + n - 1, heads - 1) + dim;
  Vector<std::byte> room(scratch);
  const std::byte* q = pages.read_tensor(static_cast<const std::byte*>(batch.q) + begin * dtype_bytes(batch.q_dtype),
                                         (end - begin) * dtype_bytes(batch.q_dtype), room);
  if (sums_.empty()) sums_.assign(kParts * static_cast<size_t>(batch.kv_heads) * dim, 0.0);
  const size_t width = static_cast<size_t>(batch.kv_heads) * dim;
  std::array<float, kMaxHeadDim> row;
  for (size_t i = 0; i < n; ++i) {
    if (!counts(positions[i])) continue;
    double* sums = sums_.data() + part_of(positions[i]) * width;
    for (size_t head = 0; head < heads; ++head) {
      read_floats(q, batch.q_dtype, batch.q_strides.at(first + i, head) - begin, dim, row.data());
      double* of_head = sums + head / of_kv_head * dim;
      for (size_t c = 0; c < dim; ++c) {
        if (std::isfinite(row[c])) of_head[c] += double{row[c]} * double{row[c]};
      }
    }
    next_ = positions[i] + 1;
  }
}

Vector<double> QueryEnergies::sums(int32_t tokens, Allocator& allocator) const {
  Vector<double> sums(allocator);
  if (sums_.empty()) return sums;
  const size_t width = sums_.size() / kParts;
  sums.assign(width, 0.0);
  for (size_t part = 0; part <= part_of(tokens - 1); ++part) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums_[part * width + i];
  }
  return sums;
}

Calibration::Calibration(Cache& cache) : layers_(cache.allocator) {
  layers_.reserve(static_cast<size_t>(cache.n_layers));
  for (int32_t i = 0; i < cache.n_layers; ++i) layers_.emplace_back(cache.allocator);
}

Calibration::Calibration(Cache& cache, const Calibration& parent) : layers_(cache.allocator) {
  const std::lock_guard lock(parent.mutex);
  layers_ = parent.layers_;
}

void QueryEnergies::drop() noexcept {
  Vector<double>(sums_.get_allocator()).swap(sums_);
  next_ = 0;
}

void QueryEnergies::truncate(int32_t length) noexcept {
  if (length == 0) drop();
  count_again(length);
}

void Calibration::truncate(int32_t length, bool found_anew) noexcept {
  for (Layer& layer : layers_) {
    layer.queries.truncate(length);
    if (length < layer.alike) layer.alike = 0;
    if (length > 0 || !found_anew) continue;  // sealed pages keep their scales
    layer.scales = nullptr;
    layer.given_up = false;
  }
}

Vector<QueryEnergies> Calibration::counted(Allocator& allocator) const {
  Vector<QueryEnergies> counted(allocator);
  counted.reserve(layers_.size());
  for (const Layer& layer : layers_) counted.push_back(layer.queries);
  return counted;
}

void Calibration::begin_step(Vector<QueryEnergies>& counted) noexcept {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].before_step = std::move(counted[i]);
}

void Calibration::end_step(const Sequence& sequence, bool keeps_any) noexcept {
  for (int32_t i = 0; i < static_cast<int32_t>(layers_.size()); ++i) {
    Layer& of_layer = layer(i);
    if (!keeps_any && of_layer.before_step) std::swap(of_layer.queries, *of_layer.before_step);
    of_layer.before_step.reset();
    of_layer.queries.count_again(sequence.last_position(i) + 1);
  }
}

uint64_t Calibration::bytes() const {
  const std::lock_guard lock(mutex);  // others may attend
  uint64_t bytes = sizeof(*this) + layers_.capacity() * sizeof(Layer);
  for (const Layer& layer : layers_) {
    bytes += layer.queries.bytes();
    if (layer.before_step) bytes += layer.before_step->bytes();
    if (layer.scales != nullptr) bytes += layer.scales->bytes();
  }
  return bytes;
}

uint64_t Calibration::table_bytes(const Cache& cache) {
  return sizeof(Calibration) + static_cast<uint64_t>(cache.n_layers) * sizeof(Layer);
}

uint64_t Calibration::bytes_of(const Cache& cache, const Storage& storage, int32_t tokens, int32_t queries) {
  if (!finds_own_scales(cache, storage)) return 0;
  uint64_t bytes = table_bytes(cache);
  for (int32_t i = 0; i < cache.n_layers; ++i) {
    if (storage.layer_at(i).stays_float16()) continue;
    // With the first tokens alone a layer waits, and has counted their queries.
    if (tokens > kCalibrationTokens) bytes += FoundScales::bytes_of(cache.layer(i));
    if (tokens <= kCalibrationTokens && tokens > 0 && queries > 0) bytes += QueryEnergies::bytes_of(cache.layer(i));
  }
  return bytes;
}

bool finds_own_scales(const Cache& cache, const Storage& storage) {
  return storage.calibrates && cache.training.scales == nullptr;
}

Owned<Calibration> make_calibration(Cache& cache, const Storage& storage) {
  if (finds_own_scales(cache, storage)) return make_owned<Calibration>(cache.allocator, cache);
  return {nullptr, Deleter<Calibration>(cache.allocator, 0, 0)};
}

ObservedQueries::ObservedQueries(const Sequence& sequence, int32_t layer, const AttendBatch& batch,
                                 const AttendSequence& entry)
    : calibration_(sequence.calibration.get()), queries_(nullptr), before_(sequence.cache.allocator) {
  if (batch.recorded || !sequence.waits(layer)) return;
  Cache& cache = sequence.cache;
  const std::lock_guard lock(calibration_->mutex);
  QueryEnergies& queries = calibration_->layer(layer).queries;
  before_ = queries;
  before_.add(batch, entry, cache.backend.pages(), cache.allocator);
  std::swap(before_, queries);
  queries_ = &queries;
}

ObservedQueries::ObservedQueries(ObservedQueries&& other) noexcept
    : calibration_(other.calibration_),
      queries_(std::exchange(other.queries_, nullptr)),
      before_(std::move(other.before_)) {}

ObservedQueries::~ObservedQueries() {
  if (queries_ == nullptr) return;
  const std::lock_guard lock(calibration_->mutex);
  std::swap(*queries_, before_);
}

Calibrator::Calibrator(Sequence& sequence, int32_t layer)
    : sequence_(&sequence),
      layer_(layer),
      other_(sequence.calibration->layer(layer).decision()),
      other_pages_(sequence.cache.allocator) {}

Calibrator::Calibrator(Calibrator&& other) noexcept
    : sequence_(other.sequence_),
      layer_(other.layer_),
      other_(std::move(other.other_)),
      other_pages_(std::move(other.other_pages_)) {
  other.other_pages_.clear();
}

Calibrator::~Calibrator() {
  for (Page* page : other_pages_) sequence_->cache.release(page);
}

std::optional<Calibrator> Calibrator::prepare(Sequence& sequence, int32_t layer) {
  if (!has_first_tokens(sequence, layer, kCalibrationTokens)) return std::nullopt;
  std::optional<Calibrator> result{Calibrator(sequence, layer)};
  const int32_t tokens = tokens_to_use(sequence, layer, result->other_.alike);
  if (tokens == 0) return result;
  result->other_.backlog = true;
  if (tokens < 0) {
    result->other_.given_up = true;
    return result;
  }
  Cache& cache = sequence.cache;
  result->other_.scales =
      std::allocate_shared<const FoundScales>(StlAllocator<FoundScales>(cache.allocator), cache, cache.layer(layer),
                                              find_numbers(sequence, layer, tokens), tokens);
  result->scale_pages();
  return result;
}

uint64_t Calibrator::bytes_of(const LayerShape& layer, int64_t pages_of_list) {
  const auto pages = static_cast<uint64_t>(pages_of_list);
  const auto heads = static_cast<uint64_t>(layer.kv_heads);
  const auto dim = static_cast<uint64_t>(layer.head.largest());
  const uint64_t tokens = std::min<uint64_t>(pages * kPageSlots, kMostCalibrationTokens);
  const uint64_t copies = heads * pages * (layer.float16->bytes() + PageRun::bytes_for(1) + sizeof(Page*));
  // Tokens of one head, as they are and without RoPE, and a page of them as it is read.
  const uint64_t of_head = tokens * (2 * dim * sizeof(float) + sizeof(int32_t)) +
                           std::min<uint64_t>(tokens, kMostCompared) * dim * sizeof(float) + 2 * layer.float16->bytes();
  const uint64_t changes = heads * pages * 256;  // of the append that seals them
  const uint64_t sums = (heads + 16) * dim * sizeof(double);
  return copies + changes + of_head + sums + FoundScales::bytes_of(layer) + sizeof(Calibrator);
}

Calibrator Calibrator::give_up(Sequence& sequence, int32_t layer) {
  Calibrator result(sequence, layer);
  result.other_.given_up = result.other_.backlog = true;
  return result;
}

void Calibrator::scale_pages() {
  Cache& cache = sequence_->cache;
  const LayerShape& shape = cache.layer(layer_);
  const LayerScales scales{other_.scales->numbers().data()};
  Vector<std::byte> bytes(shape.float16->bytes(), std::byte{}, cache.allocator);
  const auto at = [&](Side side, int32_t slot, int32_t channel) -> uint16_t& {
    auto* numbers = reinterpret_cast<uint16_t*>(bytes.data() + shape.float16->offset(side));
    return numbers[float16::index(side, shape.head.of(side), slot, channel)];
  };
  size_t pages = 0;
  for (const Sequence::PageList& list : sequence_->lists_of(layer_)) pages += list.size();
  other_pages_.reserve(pages);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    const float* of_keys = scales.of(ScaleArray::kKeys, head, shape.head);
    const float* of_values = scales.of(ScaleArray::kValues, head, shape.head);
    const float* offsets = scales.of(ScaleArray::kOffsets, head, shape.head);
    for (const Page* page : sequence_->list(layer_, head)) {
      cache.backend.pages().read(*shape.float16, page->data, bytes.data());
      for (int32_t slot = 0; slot < page->count; ++slot) {
        for (int32_t i = 0; i < shape.head.keys; ++i) {
          uint16_t& key = at(Side::kKeys, slot, i);
          key = to_finite_float16(from_float16(key) * of_keys[i]);
        }
        for (int32_t i = 0; i < shape.head.values; ++i) {
          uint16_t& value = at(Side::kValues, slot, i);
          value = to_finite_float16((from_float16(value) - offsets[i]) * of_values[i]);
        }
      }
      Page* scaled = cache.make_page(shape.float16, page->positions != nullptr);
      other_pages_.push_back(scaled);
      scaled->first_position = page->first_position;
      if (page->positions != nullptr) std::copy_n(page->positions, kPageSlots, scaled->positions);
      cache.set_count(scaled, page->count);
      cache.backend.pages().write(*shape.float16, bytes.data(), scaled->data);
    }
  }
}

void Calibrator::exchange() noexcept {
  Calibration::Decision& decision = sequence_->calibration->layer(layer_).decision();
  const bool waits_on = decision.backlog == other_.backlog;
  std::swap(decision, other_);
  if (waits_on) return;
  auto other = other_pages_.begin();
  for (int32_t head = 0; head < sequence_->cache.layer(layer_).kv_heads; ++head) {
    for (Page*& page : sequence_->list(layer_, head)) {
      if (other == other_pages_.end()) break;
      std::swap(page, *other++);
    }
    if (LayerMirror* mirror = sequence_->mirror(layer_)) mirror->invalidate(head, 0);
  }
}

void Calibrator::forget_queries() noexcept {
  if (sequence_->waits(layer_)) return;
  const std::lock_guard lock(sequence_->calibration->mutex);
  sequence_->calibration->layer(layer_).queries.drop();
}

Calibrators::~Calibrators() {
  for (auto each = made_.rbegin(); each != made_.rend(); ++each) each->undo();
}

void Calibrators::add(Sequence& sequence, int32_t layer) {
  made_.reserve(made_.size() + 1);
  std::optional<Calibrator> calibrator = Calibrator::prepare(sequence, layer);
  if (!calibrator) return;
  made_.push_back(std::move(*calibrator));
  made_.back().commit();
}

void Calibrators::end_waiting(Sequence& sequence, int32_t layer) {
  add(sequence, layer);
  if (!sequence.waits(layer)) return;
  made_.reserve(made_.size() + 1);
  made_.push_back(Calibrator::give_up(sequence, layer));
  made_.back().commit();
}

void Calibrators::keep() noexcept {
  for (Calibrator& each : made_) each.forget_queries();
  made_.clear();
}

void end_waiting_with_sealed_pages(Sequence& sequence) noexcept {
  const auto has_sealed = [](const Sequence::PageList& list) {
    return std::ranges::any_of(list, [](const Page* page) { return !page->is_float16(); });
  };
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (!sequence.waits(layer) || std::ranges::none_of(sequence.lists_of(layer), has_sealed)) continue;
    sequence.calibration->layer(layer).given_up = true;
  }
}

void require_calibrated(const Sequence& sequence, int32_t layer, const char* what) {
  if (!sequence.waits(layer)) return;
  fail(KVQ_E_STATE,
       "%s: layer %d has %d tokens and waits for at least %d, by which it finds its scales; append these first and "
       "reserve again, or use a policy with calibrate: none",
       what, sequence.cache.number(layer), sequence.length(layer), kCalibrationTokens);
}

}  // namespace kvq
