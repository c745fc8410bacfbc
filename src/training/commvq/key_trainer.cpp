#include "training/commvq/key_trainer.h"

#include "core/error.h"
#include "formats/commvq/key_kernels.h"
#include "training/commvq/key_refinement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvq {
namespace {

/// Neighbouring tokens resemble each other, so what judges must not lie between what is learnt from.
constexpr int32_t kLongestRun = 256;

/// Less than this share of the keys is not worth a code: it is what rounding leaves.
constexpr double kNothing = 1e-12;

/// Iterations stop when they gain less than this share of the error.
constexpr double kLeastGain = 1e-4;

void check(const KeyTrainingData& data, int32_t codes, const KeyTrainingOptions& options) {
  if (data.n < codes) fail(KVQ_E_ARGUMENT, "there are %d tokens to train %d codes of keys from", data.n, codes);
  if (!(options.held_out >= 0.0F && options.held_out <= 0.5F)) {
    fail(KVQ_E_ARGUMENT, "held_out is %g, but a share from 0 to 0.5 can be held out",
         static_cast<double>(options.held_out));
  }
  if (options.beam < 1 || options.beam > KeyEncoder::kMaxBeam) {
    fail(KVQ_E_ARGUMENT, "beam is %d, it can be 1 to %d", options.beam, KeyEncoder::kMaxBeam);
  }
  if (options.tokens < codes || options.hard_iterations < 1 || options.soft_iterations < 0 || options.rounds < 0 ||
      !(options.soft_share > 0.0F && options.soft_share <= 1.0F) || !(options.first_temperature > 0.0F) ||
      !(options.last_temperature > 0.0F) || !(options.count_floor > 0.0) || !(options.ridge > 0.0)) {
    fail(KVQ_E_ARGUMENT, "an option of the training of keys is out of range");
  }
}

/// The generator's own numbers, because standard distributions differ between libraries.
int32_t draw(std::mt19937_64& random, int32_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); }

void shuffle(std::span<int32_t> items, std::mt19937_64& random) {
  for (auto i = static_cast<int32_t>(items.size()); i > 1; --i) {
    std::swap(items[static_cast<size_t>(i - 1)], items[static_cast<size_t>(draw(random, i))]);
  }
}

/// Codes z = x / (1 + i) of random x: centre (a, a) is the token itself.
void start_codes(const keys::Tokens& tokens, std::mt19937_64& random, std::span<float> z) {
  const auto group = static_cast<size_t>(tokens.group);
  for (size_t at = 0; at < z.size(); at += 2 * group) {
    const KeyPairs x = tokens.pairs().from(draw(random, tokens.n));
    for (size_t j = 0; j < group; ++j) {
      z[at + 2 * j] = 0.5F * (x.real[j] + x.imaginary[j]);
      z[at + 2 * j + 1] = 0.5F * (x.imaginary[j] - x.real[j]);
    }
  }
}

double total_weight(const keys::Tokens& tokens) {
  double sum = 0.0;
  for (int32_t t = 0; t < tokens.n; ++t) sum += double{tokens.weight(t)};
  return sum;
}

}  // namespace

KeyTrainer::Sample::Sample(Allocator& allocator)
    : vectors(StlAllocator<float>(allocator)), weights(StlAllocator<float>(allocator)) {}

KeyTrainer::KeyTrainer(Allocator& allocator, Parallel& parallel, int32_t codes, const KeyTrainingData& data,
                       const KeyTrainingOptions& options)
    : allocator_(&allocator),
      parallel_(&parallel),
      codes_(codes),
      group_(data.group),
      options_(options),
      training_(allocator),
      held_out_(allocator) {
  check_key_codes(codes, data.group);
  check(data, codes, options);
  read(data);
  if (training_.tokens.n < codes) {
    fail(KVQ_E_ARGUMENT, "there are %d tokens to train %d codes of keys from, %d others are held out",
         training_.tokens.n, codes, held_out_.tokens.n);
  }
}

void KeyTrainer::read(const KeyTrainingData& data) {
  std::mt19937_64 random(options_.seed);
  Vector<int32_t> order(static_cast<size_t>(data.n), StlAllocator<int32_t>(*allocator_));
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, random);
  order.resize(std::min(order.size(), static_cast<size_t>(options_.tokens)));

  const int32_t parts = options_.held_out > 0.0F ? static_cast<int32_t>(std::lround(1.0F / options_.held_out)) : 0;
  const int32_t run = parts == 0 ? 1 : std::clamp(data.n / (4 * parts), 1, kLongestRun);
  const auto is_held_out = [&](int32_t token) { return parts != 0 && token / run % parts == parts - 1; };
  for (Sample* sample : {&training_, &held_out_}) {
    const bool wanted = sample == &held_out_;
    const auto n = std::count_if(order.begin(), order.end(), [&](int32_t t) { return is_held_out(t) == wanted; });
    sample->vectors.resize(static_cast<size_t>(n) * keys::vector_floats(group_));
    if (data.weights != nullptr) sample->weights.resize(static_cast<size_t>(n));
    sample->tokens = {sample->vectors.data(), data.weights != nullptr ? sample->weights.data() : nullptr, 0, group_};
    for (const int32_t token : order) {
      if (is_held_out(token) == wanted) add(data, token, *sample);
    }
    sample->energy = keys::energy(sample->tokens);
  }
}

void KeyTrainer::add(const KeyTrainingData& data, int32_t token, Sample& sample) const {
  const auto to = static_cast<size_t>(sample.tokens.n++);
  keys::read_vector(data.keys.from(token), group_, data.norms != nullptr ? data.norms[token] : 1.0F,
                    sample.vectors.data() + to * keys::vector_floats(group_));
  if (data.weights != nullptr) sample.weights[to] = data.weights[token];
}

int32_t KeyTrainer::stages_of(std::span<const float> z) const {
  const size_t stage = 2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_);
  if (z.size() % stage != 0) fail(KVQ_E_ARGUMENT, "there are %zu numbers for stages of %zu", z.size(), stage);
  return static_cast<int32_t>(z.size() / stage);
}

bool KeyTrainer::add_stages(int32_t stages, Vector<float>& z, const KeyTrainingObserver& observer) {
  const int32_t first = stages_of(z);
  Vector<uint8_t> indices{StlAllocator<uint8_t>(*allocator_)};
  Vector<float> memory(training_.vectors);
  keys::Tokens residuals = training_.tokens;
  residuals.vectors = memory.data();
  if (first > 0) {
    const KeyEncoder encoder(*allocator_, first, codes_, group_, z);
    keys::subtract_codes(*allocator_, *parallel_, encoder, 1, residuals, indices);
  }
  Vector<float> codes(2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_), StlAllocator<float>(*allocator_));
  for (int32_t stage = first; stage < first + stages; ++stage) {
    if (!train_stage(stage, residuals, codes, observer)) return false;
    z.insert(z.end(), codes.begin(), codes.end());
    const KeyEncoder encoder(*allocator_, 1, codes_, group_, codes);
    keys::subtract_codes(*allocator_, *parallel_, encoder, 1, residuals, indices);
  }
  return true;
}

bool KeyTrainer::train_stage(int32_t stage, const keys::Tokens& residuals, std::span<float> z,
                             const KeyTrainingObserver& observer) {
  std::fill(z.begin(), z.end(), 0.0F);
  const double energy = keys::energy(residuals);
  if (energy <= kNothing * training_.energy) return true;

  std::mt19937_64 random(options_.seed + static_cast<uint64_t>(stage) + 1);
  start_codes(residuals, random, z);
  // The tokens are in random order: any part of them is a sample.
  const auto share = static_cast<int32_t>(options_.soft_share * static_cast<float>(residuals.n));
  const keys::Tokens part = residuals.part(0, std::max(share, std::min(codes_, residuals.n)));
  keys::Tokens unweighted = residuals;
  unweighted.weights = nullptr;
  const double squared_length = keys::energy(unweighted) / residuals.n;
  const double part_energy = keys::energy(part);

  keys::Assignment assignment(*allocator_, *parallel_, codes_, group_);
  keys::Statistics statistics(*allocator_, codes_, group_);
  Vector<float> best(z.begin(), z.end(), StlAllocator<float>(*allocator_));
  double best_error = HUGE_VAL;
  const int32_t soft = options_.soft_iterations;
  for (int32_t iteration = 0; iteration < soft + options_.hard_iterations; ++iteration) {
    const KeyEncoder encoder(*allocator_, 1, codes_, group_, z);
    double error = 0.0;
    bool last = false;
    if (iteration < soft) {
      const double progress = soft > 1 ? 1.0 * iteration / (soft - 1) : 0.0;
      const double temperature = double{options_.first_temperature} *
                                 std::pow(double{options_.last_temperature / options_.first_temperature}, progress);
      assignment.assign_softly(encoder, part, static_cast<float>(temperature * squared_length), statistics);
      error = part_energy > 0.0 ? statistics.error(encoder, part_energy) / part_energy * energy : 0.0;
    } else {
      assignment.assign_nearest(encoder, residuals, statistics);
      error = statistics.error(encoder, energy);
      last = !(error < (1.0 - kLeastGain) * best_error);
      if (error < best_error) {
        best_error = error;
        std::copy(z.begin(), z.end(), best.begin());
      }
    }
    if (!observer({stage, iteration, relative(error, training_)})) return false;
    if (last) break;
    keys::fit_codes(statistics, options_.count_floor, z);
  }
  std::copy(best.begin(), best.end(), z.begin());
  return true;
}

bool KeyTrainer::refine(std::span<float> z, const KeyTrainingObserver& observer) {
  const int32_t stages = stages_of(z);
  if (stages == 0) return true;
  const double ridge = options_.ridge * 2.0 * total_weight(training_.tokens) / codes_;
  Vector<uint8_t> indices{StlAllocator<uint8_t>(*allocator_)};
  Vector<float> memory(training_.vectors.size(), StlAllocator<float>(*allocator_));
  keys::Tokens residuals = training_.tokens;
  residuals.vectors = memory.data();
  Vector<float> next(z.begin(), z.end(), StlAllocator<float>(*allocator_));
  double best_error = error(z);
  for (int32_t round = 0; round < options_.rounds && best_error > kNothing; ++round) {
    std::copy(training_.vectors.begin(), training_.vectors.end(), memory.begin());
    const KeyEncoder encoder(*allocator_, stages, codes_, group_, next);
    keys::subtract_codes(*allocator_, *parallel_, encoder, options_.beam, residuals, indices);
    keys::refine_codes(*allocator_, *parallel_, residuals, indices.data(), stages, codes_, ridge, next);
    const double reached = error(next);
    const bool better = reached < best_error;
    if (better) {
      best_error = reached;
      std::copy(next.begin(), next.end(), z.begin());
    }
    if (!observer({stages, round, reached})) return false;
  }
  return true;
}

double KeyTrainer::error(std::span<const float> z) const {
  const int32_t stages = stages_of(z);
  const Sample& sample = judges();
  if (stages == 0) return relative(sample.energy, sample);
  Vector<float> memory(sample.vectors);
  keys::Tokens residuals = sample.tokens;
  residuals.vectors = memory.data();
  Vector<uint8_t> indices{StlAllocator<uint8_t>(*allocator_)};
  const KeyEncoder encoder(*allocator_, stages, codes_, group_, z);
  keys::subtract_codes(*allocator_, *parallel_, encoder, options_.beam, residuals, indices);
  return relative(keys::energy(residuals), sample);
}

Vector<double> KeyTrainer::stage_errors(std::span<const float> z) const {
  const int32_t stages = stages_of(z);
  Vector<double> errors{StlAllocator<double>(*allocator_)};
  if (stages == 0) return errors;
  const Sample& sample = judges();
  const KeyEncoder encoder(*allocator_, stages, codes_, group_, z);
  Vector<float> memory(sample.vectors);
  keys::Tokens residuals = sample.tokens;
  residuals.vectors = memory.data();
  Vector<uint8_t> indices{StlAllocator<uint8_t>(*allocator_)};
  keys::subtract_codes(*allocator_, *parallel_, encoder, options_.beam, residuals, indices);
  std::copy(sample.vectors.begin(), sample.vectors.end(), memory.begin());
  const keys::KeyKernels& run = *keys::key_kernels().front();
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t t = 0; t < residuals.n; ++t) {
      const uint8_t* index =
          indices.data() + 2 * (static_cast<size_t>(t) * static_cast<size_t>(stages) + static_cast<size_t>(stage));
      float* vector = residuals.vectors + static_cast<size_t>(t) * residuals.vector();
      run.subtract_centre(vector, encoder.code(stage, index[0]), encoder.code(stage, index[1]), keys::padded(group_),
                          vector);
    }
    errors.push_back(relative(keys::energy(residuals), sample));
  }
  return errors;
}

}  // namespace kvq
