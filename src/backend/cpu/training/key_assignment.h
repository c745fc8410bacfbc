// Assignment of tokens to centres, for one stage of key codes.
#pragma once

#include "backend/cpu/training/key_tokens.h"
#include "backend/key_sample.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/key_encoder.h"

#include <cstddef>
#include <cstdint>

namespace kvq::keys {

/// E-steps.
class Assignment {
 public:
  Assignment(Allocator& allocator, Parallel& parallel, int32_t codes, int32_t group);

  int32_t codes() const { return codes_; }

  /// Assigns each token to its nearest centre.
  void assign_nearest(const KeyEncoder& stage, const Tokens& tokens, KeyStatistics& statistics);
  /// Weighs each token's assignment to every centre (CommVQ eq. 35); tokens whose weights leave the range of a float go
  /// to the nearest centre alone.
  void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, const Tokens& tokens,
                     KeyStatistics& statistics);

 private:
  struct Partial {  // sums of a chunk
    Partial(Allocator& allocator, int32_t codes, int32_t group);

    Vector<float> counts;       // [width of a][width of b]
    Vector<float> soft_counts;  // without the factor of W that depends on (a, b) alone
    Vector<float> by_a;         // [width][vector] sums of the vectors
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

  void assign_nearest(const KeyEncoder& stage, const Tokens& tokens, Partial& partial) const;
  void assign_softly(const KeyEncoder& stage, const Tokens& tokens, const SoftKernel& kernel, Partial& partial) const;
  void assign_block_softly(const KeyEncoder& stage, const Tokens& tokens, const SoftKernel& kernel,
                           Partial& partial) const;
  void sum_up(KeyStatistics& statistics);

  Parallel* parallel_;
  int32_t codes_;
  int32_t group_;
  Vector<Partial> partials_;
};

}  // namespace kvq::keys
