#include "training/commvq/key_trainer.h"

#include "core/error.h"
#include "core/sizes.h"
#include "formats/commvq/key_kernels.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <complex>
#include <numeric>
#include <random>

namespace kvq {
namespace {

using Complex = std::complex<double>;
using ComplexMatrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Neighbouring tokens are similar: hold out runs of tokens.
constexpr int32_t kLongestRun = 256;

/// Residuals below this share of the keys are rounding errors, not worth a code.
constexpr double kNothing = 1e-12;

/// Least relative gain of an iteration for another one to follow.
constexpr double kLeastKeyGain = 1e-4;

void check(const KeyTrainingData& data, int32_t codes, const KeyTrainingOptions& options) {
  if (data.n < codes) fail(KVQ_E_ARGUMENT, "%d tokens are too few to train %d key codes", data.n, codes);
  if (!(options.held_out >= 0.0F && options.held_out <= 0.5F)) {
    fail(KVQ_E_ARGUMENT, "held_out is %g, must be in [0, 0.5]", static_cast<double>(options.held_out));
  }
  if (options.beam < 1 || options.beam > KeyEncoder::kMaxBeam) {
    fail(KVQ_E_ARGUMENT, "beam is %d, must be in [1, %d]", options.beam, KeyEncoder::kMaxBeam);
  }
  if (options.tokens < codes || options.hard_iterations < 1 || options.soft_iterations < 0 || options.rounds < 0 ||
      !(options.soft_share > 0.0F && options.soft_share <= 1.0F) || !(options.first_temperature > 0.0F) ||
      !(options.last_temperature > 0.0F) || !(options.count_floor > 0.0) || !(options.ridge > 0.0)) {
    fail(KVQ_E_ARGUMENT, "an option of key training is out of range");
  }
}

/// The generator's own numbers: standard distributions differ between libraries.
int32_t draw(std::mt19937_64& random, int32_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); }

void shuffle(std::span<int32_t> items, std::mt19937_64& random) {
  for (auto i = static_cast<int32_t>(items.size()); i > 1; --i) {
    std::swap(items[static_cast<size_t>(i - 1)], items[static_cast<size_t>(draw(random, i))]);
  }
}

/// Codes z = x / (1 + i) of random x: centre (a, a) is the token itself.
void start_codes(KeySample& sample, int32_t n, int32_t group, std::mt19937_64& random, Vector<float>& z) {
  const size_t codes = z.size() / (2 * static_cast<size_t>(group));
  Vector<int32_t> drawn(codes, z.get_allocator());
  for (int32_t& each : drawn) each = draw(random, n);
  Vector<float> vectors(codes * keys::vector_floats(group), z.get_allocator());
  sample.read(drawn, vectors.data());
  float* to = z.data();
  for (size_t c = 0; c < codes; ++c) {
    const float* real = vectors.data() + c * keys::vector_floats(group);
    const float* imaginary = real + keys::padded(group);
    for (int32_t j = 0; j < group; ++j) {
      *to++ = 0.5F * (real[j] + imaginary[j]);
      *to++ = 0.5F * (imaginary[j] - real[j]);
    }
  }
}

/// Σ weight · ‖vector‖².
double energy_of(std::span<const float> vectors, std::span<const float> weights, size_t length) {
  double sum = 0.0;
  for (size_t t = 0; t * length < vectors.size(); ++t) {
    double squares = 0.0;
    for (const float x : vectors.subspan(t * length, length)) squares += double{x} * double{x};
    sum += (weights.empty() ? 1.0 : double{weights[t]}) * squares;
  }
  return sum;
}

}  // namespace

double keys::assignment_error(const KeyStatistics& statistics, const KeyEncoder& stage, double energy) {
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // Σ W·(‖x‖² − 2 Re conj(c)·x + ‖c‖²)
  double sum = energy;
  for (int32_t a = 0; a < codes; ++a) {
    const float* z = stage.code(0, a);
    const double* moment = statistics.moments.data() + 2 * size(a, group);
    for (int32_t j = 0; j < group; ++j) {
      sum -= 2.0 * (moment[2 * j] * double{z[j]} + moment[2 * j + 1] * double{z[padded(group) + j]});
    }
    for (int32_t b = 0; b < codes; ++b) {
      sum += statistics.counts[size(a, codes) + static_cast<size_t>(b)] *
             double{stage.norms(0)[size(b, stage.width()) + static_cast<size_t>(a)]};
    }
  }
  return sum;
}

void keys::fit_codes(const KeyStatistics& statistics, double floor, std::span<float> z) {
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // A = diag(row + column sums) + i·(N − Nᵀ)
  const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> counts(
      statistics.counts.data(), codes, codes);
  ComplexMatrix system = Complex(0.0, 1.0) * (counts - counts.transpose()).cast<Complex>();
  system.diagonal() += (counts.rowwise().sum() + counts.colwise().sum().transpose()).cast<Complex>();
  system.diagonal().array() += floor;

  ComplexMatrix solution(codes, group);
  for (int32_t i = 0; i < codes * group; ++i) {
    const Complex moment(statistics.moments[static_cast<size_t>(2 * i)],
                         statistics.moments[static_cast<size_t>(2 * i + 1)]);
    const Complex before(double{z[static_cast<size_t>(2 * i)]}, double{z[static_cast<size_t>(2 * i + 1)]});
    solution.data()[i] = moment + floor * before;
  }
  system.llt().solveInPlace(solution);
  for (int32_t i = 0; i < codes * group; ++i) {
    z[static_cast<size_t>(2 * i)] = static_cast<float>(solution.data()[i].real());
    z[static_cast<size_t>(2 * i + 1)] = static_cast<float>(solution.data()[i].imag());
  }
}

void keys::refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge,
                        std::span<float> z) {
  const int32_t n = encoder.stages() * encoder.codes();
  const auto rows = static_cast<size_t>(n);
  Vector<Complex> system_memory(size(rows, rows), allocator);
  Vector<Complex> side_memory(rows * static_cast<size_t>(encoder.group()), allocator);
  sample.add_equations(encoder, system_memory, side_memory);
  Eigen::Map<ComplexMatrix> system(system_memory.data(), n, n);
  Eigen::Map<ComplexMatrix> sides(side_memory.data(), n, encoder.group());
  system.diagonal().array() += ridge;
  const Eigen::LLT<Eigen::Ref<ComplexMatrix>> factor(system);
  factor.solveInPlace(sides);
  for (size_t i = 0; i < side_memory.size(); ++i) {
    z[2 * i] += static_cast<float>(side_memory[i].real());
    z[2 * i + 1] += static_cast<float>(side_memory[i].imag());
  }
}

KeyTrainer::KeyTrainer(Allocator& allocator, Training& backend, int32_t codes, const KeyTrainingData& data,
                       const KeyTrainingOptions& options)
    : allocator_(&allocator),
      backend_(&backend),
      codes_(codes),
      group_(data.group),
      options_(options),
      training_(allocator),
      held_out_(allocator) {
  check_key_codes(codes, data.group);
  check(data, codes, options);
  read(data);
  if (training_.n < codes) {
    fail(KVQ_E_ARGUMENT, "%d tokens are too few to train %d key codes: %d others are held out", training_.n, codes,
         held_out_.n);
  }
}

void KeyTrainer::read(const KeyTrainingData& data) {
  std::mt19937_64 random(options_.seed);
  Vector<int32_t> order(static_cast<size_t>(data.n), *allocator_);
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, random);
  order.resize(std::min(order.size(), static_cast<size_t>(options_.tokens)));

  const int32_t parts = options_.held_out > 0.0F ? static_cast<int32_t>(std::lround(1.0F / options_.held_out)) : 0;
  const int32_t run = parts == 0 ? 1 : std::clamp(data.n / (4 * parts), 1, kLongestRun);
  const auto is_held_out = [&](int32_t token) { return parts != 0 && token / run % parts == parts - 1; };
  for (Sample* sample : {&training_, &held_out_}) {
    const bool wanted = sample == &held_out_;
    const auto n = std::count_if(order.begin(), order.end(), [&](int32_t t) { return is_held_out(t) == wanted; });
    sample->vectors.resize(size(n, keys::vector_floats(group_)));
    if (data.weights != nullptr) sample->weights.resize(static_cast<size_t>(n));
    for (const int32_t token : order) {
      if (is_held_out(token) != wanted) continue;
      const auto to = static_cast<size_t>(sample->n++);
      keys::read_vector(data.keys.from(token), group_, data.norms != nullptr ? data.norms[token] : 1.0F,
                        sample->vectors.data() + to * keys::vector_floats(group_));
      if (data.weights != nullptr) sample->weights[to] = data.weights[token];
    }
    if (sample->n == 0) continue;
    sample->keys = backend_->make_key_sample(*allocator_, {sample->vectors, sample->weights, sample->n, group_});
    sample->energy = sample->keys->energy(sample->n);
  }
}

int32_t KeyTrainer::stages_of(std::span<const float> z) const {
  const size_t stage = 2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_);
  if (z.size() % stage != 0) fail(KVQ_E_ARGUMENT, "there are %zu numbers for stages of %zu", z.size(), stage);
  return static_cast<int32_t>(z.size() / stage);
}

bool KeyTrainer::add_stages(int32_t stages, Vector<float>& z, const KeyTrainingObserver& observer) {
  const int32_t first = stages_of(z);
  KeySample& sample = *training_.keys;
  sample.restore();
  if (first > 0) sample.encode(KeyEncoder(*allocator_, first, codes_, group_, z), 1);
  Vector<float> codes(2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_), *allocator_);
  for (int32_t stage = first; stage < first + stages; ++stage) {
    if (!train_stage(stage, codes, observer)) return false;
    z.insert(z.end(), codes.begin(), codes.end());
    sample.encode(KeyEncoder(*allocator_, 1, codes_, group_, codes), 1);
  }
  return true;
}

bool KeyTrainer::train_stage(int32_t stage, Vector<float>& z, const KeyTrainingObserver& observer) {
  std::fill(z.begin(), z.end(), 0.0F);
  KeySample& sample = *training_.keys;
  const int32_t n = training_.n;
  const double energy = sample.energy(n);
  if (energy <= kNothing * training_.energy) return true;

  std::mt19937_64 random(options_.seed + static_cast<uint64_t>(stage) + 1);
  start_codes(sample, n, group_, random, z);
  // Tokens are in random order: any part is a sample.
  const auto share = static_cast<int32_t>(options_.soft_share * static_cast<float>(n));
  const int32_t part = std::max(share, std::min(codes_, n));
  const double squared_length = sample.plain_energy() / n;
  const double part_energy = sample.energy(part);

  KeyStatistics statistics(*allocator_, codes_, group_);
  Vector<float> best(z);
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
      const SoftKernel kernel(*allocator_, encoder, static_cast<float>(temperature * squared_length));
      sample.assign_softly(encoder, kernel, part, statistics);
      if (part_energy > 0.0) {
        error = keys::assignment_error(statistics, encoder, part_energy) / part_energy * energy;
      }
    } else {
      sample.assign_nearest(encoder, statistics);
      error = keys::assignment_error(statistics, encoder, energy);
      last = !(error < (1.0 - kLeastKeyGain) * best_error);
      if (error < best_error) {
        best_error = error;
        best = z;
      }
    }
    if (!observer({stage, iteration, relative(error, training_)})) return false;
    if (last) break;
    keys::fit_codes(statistics, options_.count_floor, z);
  }
  z = best;
  return true;
}

bool KeyTrainer::refine(std::span<float> z, const KeyTrainingObserver& observer) {
  const int32_t stages = stages_of(z);
  if (stages == 0) return true;
  double weight = training_.n;
  if (!training_.weights.empty()) weight = std::accumulate(training_.weights.begin(), training_.weights.end(), 0.0);
  const double ridge = options_.ridge * 2.0 * weight / codes_;
  Vector<float> next(z.begin(), z.end(), *allocator_);
  double best_error = error(z);
  for (int32_t round = 0; round < options_.rounds && best_error > kNothing; ++round) {
    const KeyEncoder encoder(*allocator_, stages, codes_, group_, next);
    training_.keys->restore();
    training_.keys->encode(encoder, options_.beam);
    keys::refine_codes(*allocator_, *training_.keys, encoder, ridge, next);
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
  sample.keys->restore();
  sample.keys->encode(KeyEncoder(*allocator_, stages, codes_, group_, z), options_.beam);
  return relative(sample.keys->energy(sample.n), sample);
}

Vector<double> KeyTrainer::stage_errors(std::span<const float> z) const {
  const int32_t stages = stages_of(z);
  Vector<double> errors(*allocator_);
  if (stages == 0) return errors;
  const Sample& sample = judges();
  const KeyEncoder encoder(*allocator_, stages, codes_, group_, z);
  sample.keys->restore();
  sample.keys->encode(encoder, options_.beam);
  const std::span<const uint8_t> indices = sample.keys->indices();
  Vector<float> rest(sample.vectors);
  const size_t length = keys::vector_floats(group_);
  const keys::KeyKernels& run = *keys::key_kernels().front();
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (size_t t = 0; t < static_cast<size_t>(sample.n); ++t) {
      const uint8_t* index = indices.data() + 2 * (t * static_cast<size_t>(stages) + static_cast<size_t>(stage));
      float* vector = rest.data() + t * length;
      run.subtract_centre(vector, encoder.code(stage, index[0]), encoder.code(stage, index[1]), keys::padded(group_),
                          vector);
    }
    errors.push_back(relative(energy_of(rest, sample.weights, length), sample));
  }
  return errors;
}

}  // namespace kvq
