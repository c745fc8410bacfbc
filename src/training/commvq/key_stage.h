// One stage of codes for keys: which tokens belong to which centres, and the codes that fit them best.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/key_encoder.h"
#include "training/commvq/key_tokens.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::keys {

/// All that the M-step needs to know of an assignment W of tokens to centres (a, b).
struct Statistics {
  Statistics(Allocator& allocator, int32_t codes, int32_t group);

  /// Σ W · ‖x − centre‖², given Σ W · ‖x‖².
  double error(const KeyEncoder& stage, double energy) const;

  int32_t codes;
  int32_t group;
  Vector<double> counts;   // N_ab = Σ W, [a][b]
  Vector<double> moments;  // Σ_b s_cb − i·Σ_a s_ac of c, where s_ab = Σ W·x; [codes][group]{re, im}
};

/// E-steps.
class Assignment {
 public:
  Assignment(Allocator& allocator, Parallel& parallel, int32_t codes, int32_t group);

  /// Each token belongs to its nearest centre.
  void assign_nearest(const KeyEncoder& stage, const Tokens& tokens, Statistics& statistics);
  /// Each token belongs to every centre, W ∝ exp(−distance² / temperature) (CommVQ eq. 35); to the nearest alone where
  /// that is beyond the range of a float.
  void assign_softly(const KeyEncoder& stage, const Tokens& tokens, float temperature, Statistics& statistics);

 private:
  struct Partial {  // of a chunk
    Partial(Allocator& allocator, int32_t codes, int32_t group);

    Vector<float> counts;       // [width of a][width of b]
    Vector<float> soft_counts;  // without the factor of W that depends on (a, b) alone
    Vector<float> by_a;         // Σ of the vectors, [width][vector]
    Vector<float> by_b;
    // Work space for a block of tokens.
    Vector<std::byte> encoding;
    Vector<uint8_t> indices;   // {a, b}
    Vector<float> products;    // [2 * width]
    Vector<float> p, q;        // [width]
    Vector<float> of_a, of_b;  // [width]

    void clear();
    void add(const Tokens& tokens, int32_t token, int32_t a, int32_t b, int32_t width);
  };
  struct Kernel;

  void assign_nearest(const KeyEncoder& stage, const Tokens& tokens, Partial& partial) const;
  void assign_softly(const KeyEncoder& stage, const Tokens& tokens, const Kernel& kernel, Partial& partial) const;
  void assign_block_softly(const KeyEncoder& stage, const Tokens& tokens, const Kernel& kernel, Partial& partial) const;
  void sum_up(Statistics& statistics);

  Allocator* allocator_;
  Parallel* parallel_;
  int32_t codes_;
  int32_t group_;
  Vector<Partial> partials_;
};

/// The codes z, [codes][group]{re, im}, that minimise Σ W·‖x − (z_a + i·z_b)‖² + floor · Σ ‖z − z before‖².
void fit_codes(const Statistics& statistics, double floor, std::span<float> z);

}  // namespace kvq::keys
