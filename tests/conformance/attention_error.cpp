#include "attention_error.h"

#include "accuracy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace conformance {

bool has_fixed_point_products(const std::string& isa) { return isa == "avx512vnni" || isa == "amx"; }

namespace {

// FP32 products. A logit is a sum of at most 256 products of numbers around 1, rounded to 24 bits at each step: about
// 2^-24 · √256 · a few, and the terms of code · scale + min that cancel add a factor of up to 8. A query's rotation
// angle at position 4000, rounded to FP32, adds about as much. The exponential makes the absolute error of a logit a
// relative error of a probability, and the sum over tokens averages it.
constexpr double kFloatLimit = 1e-5;

// Fixed point: integers of less than 8 bits on every instruction set, those of 8 bits where there are dot products of
// bytes. With B bits the step of a query channel is max|q · scale| / 2^(B−1), about 3.5 σ / 2^(B−1), its error
// uniform. Summed over D channels times codes, whose size times `scale` is that of the keys whatever their bits, it
// gives a logit an error of about 0.02 for B = 8; one sealed page and an unlucky head make that 2 % of max|v| in the
// output. Probabilities of 8 bits add less. With B = 16 everything is 256 times smaller.
constexpr double kFixed8Limit = 2e-2;
constexpr double kFixed16Limit = 1e-4;

// Gain-shape pages, on every instruction set. A query is rounded to 8 bits once per call, or more: its step is
// max|Hq| / 127, about 2.7 σ / 127 over 128 channels and 3.5 σ / 127 at worst, so no more than above, and no scale of a
// page enters it. Weights, probabilities times gains, are rounded to 7 bits or more, up or down by the token's place in
// its page: each is off by less than 1/127 of the largest, and by nothing on average. Gains and levels are exact.
constexpr double kGainShapeLimit = kFixed8Limit;

// A GPU rounds queries, queries times a page's scales, probabilities and probabilities times scales to FP16. Each adds
// a relative error of 2^-11 per term to a logit or the output, mostly averaged out over the head or the tokens.
constexpr double kHalfLimit = 4e-3;

// Keys rebuilt from codes are rounded to FP16: a relative error of up to 2^-11 a channel, so a logit's is of that
// size at most where its terms do not cancel, and of a fraction of it otherwise. Values are sums of as many rows as a
// code has bits, of both signs, whose sum is several times smaller than its terms. Tables hold products of queries and
// codes in 16 bits whose unit is that of the largest possible sum, a few times that of a sum: again about 2^-12.
constexpr double kCodedKeyLimit = 0x1p-11;
constexpr double kCodedValueLimit = 1e-5;

// These estimates assume that decoded vectors are as long as the originals. Unbiased ones are longer by 1 / cos of the
// angle between the two: at most √2, where their squared error equals that of a zero vector; scales go no further.
const double kCodedLength = std::sqrt(2.0);

double coded_limit(const std::string& way, bool of_keys, const std::string& isa) {
  // Key codes are 8 bits wide there, too.
  if (isa == kvq_test::kCuda) return of_keys ? kFixed8Limit : kHalfLimit;
  if (way == "tables" && of_keys) return kCodedKeyLimit;
  // There, codes, queries and sums of probabilities have 8 bits, as for the smaller integers.
  if (has_fixed_point_products(isa)) return kFixed8Limit;
  return of_keys ? kCodedKeyLimit : kCodedValueLimit;
}

double storage_limit(const std::string& format, bool of_keys, const std::string& way, const std::string& isa) {
  if (PageFormat::parse(format).coded()) return kCodedLength * coded_limit(way, of_keys, isa);
  if (isa == kvq_test::kCuda) return kHalfLimit;
  const PageFormat parsed = PageFormat::parse(format);
  if (parsed.gain_shape()) return kGainShapeLimit;
  if (!parsed.sealed()) return kFloatLimit;
  if (parsed.bits < 8) return kFixed8Limit;
  return has_fixed_point_products(isa) ? kFixed16Limit : kFloatLimit;
}

std::string operation(kvq_dtype out) {
  if (out == KVQ_F32) return "attend";
  return out == KVQ_F16 ? "attend, f16 out" : "attend, bf16 out";
}

double rounding_of(kvq_dtype dtype) {
  if (dtype == KVQ_F32) return 0.0;
  return dtype == KVQ_F16 ? std::ldexp(1.0, -11) : std::ldexp(1.0, -8);
}

}  // namespace

namespace {

/// Error of a logit, or of a weight relative to its size.
double logit_limit(const Scenario& s, const Storage& storage, const std::string& isa) {
  const double products = std::max(storage_limit(storage.keys, true, storage.attention, isa),
                                   storage_limit(storage.values, false, storage.attention, isa));
  // The estimates hold for logits of about 1; the error of a logit grows with it.
  const double logit_size = std::max(1.0, std::fabs(rule_of(s).scale) * std::sqrt(double{1} * s.head_dim));
  return products * logit_size;
}

}  // namespace

double lse_limit(const Scenario& s, const Storage& storage, const std::string& isa) {
  // Over a single token it is one logit, whose error is not averaged.
  return 2.0 * logit_limit(s, storage, isa);
}

double attention_limit(const Scenario& s, const Storage& storage, const std::string& isa) {
  return logit_limit(s, storage, isa) + rounding_of(s.output_dtype);
}

namespace {

struct Device {
  std::string isa;
  const char* older = nullptr;  // of a GPU whose kernels run

  // For make_context.
  std::string name() const { return older != nullptr ? isa + "/" + older : isa; }
};

std::vector<Device> devices_of(const Scenario& scenario) {
  constexpr int32_t kLargeHead = 192;  // needs more shared memory than some GPUs have
  std::vector<Device> devices;
  for (const std::string& isa : kvq_test::backends()) {
    devices.push_back({isa});
    if (isa != kvq_test::kCuda || !scenario.older_gpus) continue;
    devices.push_back({isa, "sm_80"});
    if (scenario.head_dim > kLargeHead) devices.push_back({isa, "sm_86"});
  }
  return devices;
}

}  // namespace

void check_attention(const Scenario& scenario, const std::vector<Storage>& storages) {
  CAPTURE(scenario.name);
  const Inputs inputs = make_inputs(scenario);
  const double size = largest_value(inputs);
  for (const Storage& storage : storages) {
    Expected expected;  // from the first instruction set; the others store the same
    std::vector<kvq_test::Snapshot> snapshots;
    for (const Device& device : devices_of(scenario)) {
      const std::string& isa = device.isa;
      CAPTURE(isa);
      CAPTURE(std::string(device.older != nullptr ? device.older : ""));
      CAPTURE(storage.name());
      const Run run(scenario, inputs, storage, device.name());
      if (expected.out.empty()) expected = attention_over_decoded(scenario, inputs, run);
      // Sequences in a step are not saved.
      for (size_t i = 0; scenario.masks != Masks::kTree && i < run.sequences().size(); ++i) {
        const kvq_test::Snapshot snapshot = run.sequences()[i].save();
        if (snapshots.size() == i) snapshots.push_back(snapshot);
        CHECK_MESSAGE(snapshot == snapshots[i], storage.name() << ": stored differently than on the first");
      }
      const Attended attended = run.attend_with_lse();
      const double error = largest_difference(attended.out, expected.out) / size;
      measure({operation(scenario.output_dtype), storage.name(), isa, error, attention_limit(scenario, storage, isa)},
              scenario.name);
      measure({"log-sum-exp", storage.name(), isa, largest_difference(attended.lse, expected.lse),
               lse_limit(scenario, storage, isa)},
              scenario.name);
    }
  }
}

}  // namespace conformance
