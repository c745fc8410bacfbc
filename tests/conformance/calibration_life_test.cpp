// Sequences with scales of their own in forks, snapshots, steps, evictions and recoding.
#include "calibration.h"

namespace conformance::calibration_test {

TEST_CASE("pages that were sealed without scales end the wait: recoded, or loaded in other formats") {
  const Text text(Shape{}, 400, 15);
  const std::string first_in_float16 = "layers:\n  - {range: [0, 0], keys: fp16, values: fp16}\n";
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    // What a policy without calibration makes of the first layer.
    Conversation plain(backend, "version: 1\nkeys: gs2\nvalues: gs2\n" + first_in_float16);
    const kvq_test::api::Policy gs2 = kvq_test::load_plain_policy(plain.context, "gs2");
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 0, 250);
    plain.sequence.recode(gs2);
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 250, 400);
    for (const std::string& to : {kGs2, std::string("gs2")}) {
      CAPTURE(to);
      Conversation recoded(backend, policy_of("gs2", "gs2", first_in_float16));
      const kvq_test::api::Policy policy = kvq_test::load_plain_policy(recoded.context, to);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 0, 100);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 100, 250);
      recoded.sequence.recode(policy);
      feed(recoded.cache, recoded.sequence, text, Way::kExtend, 50, 250, 400);
      for (int32_t head = 0; head < text.shape.kv_heads; ++head) {
        const Decoded found = kvq_test::decode(recoded.sequence, 0, head, 0, text.n, text.shape.head_dim);
        const Decoded wanted = kvq_test::decode(plain.sequence, 0, head, 0, text.n, text.shape.head_dim);
        CHECK(found.k == wanted.k);
        CHECK(found.v == wanted.v);
      }
    }
    Conversation as_given(backend, "fp16");
    feed(as_given.cache, as_given.sequence, text, Way::kExtend, 50, 0, 250);
    Conversation loading(backend, kGs2);
    auto options = kvq_test::initialised<kvq_load_options>();
    options.recode = 1;
    Sequence loaded = std::move(loading.cache.load(as_given.sequence.save(), options).front());
    feed(loading.cache, loaded, text, Way::kExtend, 50, 250, 400);
    as_given.sequence.recode(kvq_test::api::Policy::load(as_given.context, "gs2"));
    feed(as_given.cache, as_given.sequence, text, Way::kExtend, 50, 250, 400);
    CHECK(loaded.save() == as_given.sequence.save());
  }
}

TEST_CASE("an eviction that fails ends no wait, nor does one that leaves all tokens") {
  const Text text(Shape{}, 400, 16);
  const auto policy = [](const char* budget) {
    return policy_of("gs2", "gs2", std::string("eviction: {method: adasnap, budget: ") + budget + ", window: 16}\n");
  };
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation unseen(backend, policy("64"));
    feed(unseen.cache, unseen.sequence, text, Way::kAppend, 100, 0, 300);
    const Snapshot before = unseen.sequence.save();
    CHECK_THROWS_AS(unseen.sequence.compress(), kvq_test::api::Error);
    CHECK(unseen.sequence.save() == before);
    Conversation roomy(backend, policy("256"));
    feed(roomy.cache, roomy.sequence, text, Way::kAttend, 50, 0, 100);
    roomy.sequence.compress();
    feed(roomy.cache, roomy.sequence, text, Way::kAttend, 50, 100, 400);
    Conversation never(backend, policy("256"));
    feed(never.cache, never.sequence, text, Way::kAttend, 50, 0, 400);
    CHECK(roomy.sequence.save() == never.sequence.save());
  }
}

TEST_CASE("forks share scales, or find their own") {
  const Text text(Shape{}, 400, 6);
  const Text other(Shape{}, 400, 7);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation parent(backend, kGs2);
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 0, 100);
    Sequence early = parent.sequence.fork();
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 100, 200);
    Sequence late = parent.sequence.fork();
    feed(parent.cache, parent.sequence, text, Way::kExtend, 50, 200, 400);
    const Snapshot before = parent.sequence.save();
    feed(parent.cache, early, other, Way::kExtend, 50, 100, 400);
    feed(parent.cache, late, text, Way::kExtend, 50, 200, 400);
    CHECK(parent.sequence.save() == before);
    CHECK(late.save() == before);
    Conversation alone(backend, kGs2);
    feed(alone.cache, alone.sequence, text, Way::kExtend, 50, 0, 100);
    feed(alone.cache, alone.sequence, other, Way::kExtend, 50, 100, 400);
    CHECK(early.save() == alone.sequence.save());
    // A parent that could find its scales shares pages after it has.
    for (const bool settled : {false, true}) {
      CAPTURE(settled);
      Conversation prompt(backend, kGs2);
      feed(prompt.cache, prompt.sequence, text, Way::kAttend, 200, 0, 200);
      CHECK(prompt.sealed_pages() == 0);
      if (settled) prompt.sequence.reserve(0);
      CHECK((prompt.sealed_pages() > 0) == settled);
      Sequence child = prompt.sequence.fork();
      feed(prompt.cache, prompt.sequence, text, Way::kExtend, 50, 200, 400);
      feed(prompt.cache, child, text, Way::kExtend, 50, 200, 400);
      CHECK(prompt.sequence.save() == before);
      CHECK(child.save() == before);
      CHECK((child.usage().shared_pages > 0) == settled);
    }
  }
}

TEST_CASE("snapshots keep scales, in caches of every policy but one with scales of its own") {
  const Text text(Shape{}, 400, 8);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      Conversation conversation(backend, policy);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 250);
      const Snapshot saved = conversation.sequence.save();
      Sequence loaded = Sequence::load(conversation.cache, saved);
      CHECK(loaded.save() == saved);
      feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 250, 400);
      feed(conversation.cache, loaded, text, Way::kExtend, 50, 250, 400);
      CHECK(loaded.save() == conversation.sequence.save());
      // Pages of a plain policy with the same formats continue without.
      const std::string plain = std::string(policy).erase(policy.find("calibrate: first\n"), 17);
      const Cache other = make_cache(conversation.context, text.shape.options(), plain);
      Sequence elsewhere = Sequence::load(other, saved);
      feed(other, elsewhere, text, Way::kExtend, 50, 250, 400);
      CHECK(elsewhere.save() == conversation.sequence.save());
    }
    Conversation conversation(backend, kGs2);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 250);
    kvq_cache_options options = text.shape.options();
    const kvq_test::Centres centres = kvq_test::Centres::load(
        conversation.context.get(), kvq_test::test_centres(options, {.keys = 0, .values = 0, .scales = true}));
    options.centres = centres.get();
    const Cache scaled = make_cache(conversation.context, options, std::string("gs2"));
    CHECK_THROWS_WITH_AS(Sequence::load(scaled, conversation.sequence.save()), doctest::Contains("scales of channels"),
                         kvq_test::api::Error);
    // A policy that calibrates uses the scales of the cache.
    const Cache both = make_cache(conversation.context, options, kGs2);
    Sequence of_model(both);
    feed(both, of_model, text, Way::kExtend, 50, 0, 100);
    CHECK(of_model.usage().sealed_pages > 0);
  }
}

TEST_CASE("truncation keeps scales while any token stays") {
  const Text text(Shape{}, 300, 9);
  const Text other(Shape{}, 300, 10);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation conversation(backend, kGs2);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 0, 200);
    const Snapshot before = conversation.sequence.save();
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 50, 200, 300);
    conversation.sequence.truncate(192);
    feed(conversation.cache, conversation.sequence, text, Way::kExtend, 8, 192, 200);
    CHECK(conversation.sequence.save() == before);
    conversation.sequence.truncate(0);
    feed(conversation.cache, conversation.sequence, other, Way::kExtend, 50, 0, 300);
    Conversation fresh(backend, kGs2);
    feed(fresh.cache, fresh.sequence, other, Way::kExtend, 50, 0, 300);
    CHECK(conversation.sequence.save() == fresh.sequence.save());
    // While waiting.
    Conversation short_one(backend, kGs2);
    feed(short_one.cache, short_one.sequence, text, Way::kExtend, 50, 0, 100);
    short_one.sequence.truncate(0);
    feed(short_one.cache, short_one.sequence, other, Way::kExtend, 50, 0, 300);
    CHECK(short_one.sequence.save() == fresh.sequence.save());
    // Queries of what stays count on.
    Conversation cut(backend, kGs2);
    feed(cut.cache, cut.sequence, text, Way::kAttend, 50, 0, 100);
    cut.sequence.truncate(99);
    feed(cut.cache, cut.sequence, text, Way::kAppend, 1, 99, 300);
    Conversation whole(backend, kGs2);
    feed(whole.cache, whole.sequence, text, Way::kAttend, 50, 0, 300);
    CHECK(error_of(cut.sequence, text) < 1.05 * error_of(whole.sequence, text));
  }
}

TEST_CASE("eviction after a prompt seals pages") {
  const Text text(Shape{}, 400, 11);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    Conversation evicting(backend, policy_of("gs2", "gs2", "eviction: {method: adasnap, budget: 64, window: 16}\n"));
    feed(evicting.cache, evicting.sequence, text, Way::kAttend, 300, 0, 300);
    CHECK(evicting.sealed_pages() == 0);
    evicting.sequence.compress();
    CHECK(evicting.sealed_pages() > 0);
    CHECK(evicting.sequence.slots(0, 0) < 300);
    feed(evicting.cache, evicting.sequence, text, Way::kExtend, 50, 300, 400);
  }
}

TEST_CASE("pages can be preallocated before there are scales, and take as much as without") {
  const Text text(Shape{}, 400, 11);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 30, 0, 399);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 1, 399, 400);
      const std::pair<int32_t, int32_t> parts[] = {{0, 30}, {0, 300}, {50, 66}, {50, 120}, {128, 30}};
      for (const auto& part : parts) {
        const int32_t before = part.first;
        const int32_t chunk = part.second;
        for (const Way way : {Way::kExtend, Way::kAttend}) {
          CAPTURE(before);
          CAPTURE(chunk);
          CAPTURE(way == Way::kExtend);
          Conversation conversation(backend, policy);
          feed(conversation.cache, conversation.sequence, text, way, 50, 0, before);
          conversation.sequence.reserve(400 - before);
          for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
            CHECK(conversation.sequence.room(layer) >= 400 - before);
          }
          const uint64_t bytes = conversation.sequence.usage().total_bytes;
          feed(conversation.cache, conversation.sequence, text, way, chunk, before, 399);
          feed(conversation.cache, conversation.sequence, text, way, 1, 399, 400);
          CHECK(conversation.sequence.save() == plain.sequence.save());
          // A device that keeps tables of pages reads the same ones.
          for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
            const std::vector<float> q(text.queries(layer, 399), text.queries(layer, 399) + text.shape.query_scalars());
            const auto out = attend_last(text.shape, conversation.cache, {conversation.sequence.get()}, 1, q, layer);
            const auto expected = attend_last(text.shape, plain.cache, {plain.sequence.get()}, 1, q, layer);
            const auto differs = [](float a, float b) { return !(std::abs(a - b) <= 1e-3F * (1.0F + std::abs(b))); };
            int32_t different = 0;
            for (size_t i = 0; i < out.size(); ++i) different += differs(out[i], expected[i]) ? 1 : 0;
            CHECK(different == 0);
          }
          CHECK(conversation.sequence.usage().total_bytes < bytes + 12000);
          // The reserve goes on to keep the originals of what steps seal.
          const Snapshot before_step = conversation.sequence.save();
          for (const int32_t n : {20, 90}) {
            CAPTURE(n);
            begin_step(conversation.cache, conversation.sequence, n);
            for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
              for (int32_t i = 0; i < n; ++i) {
                kvq_test::append(conversation.sequence, layer, 1, text.keys(layer, i), text.values(layer, i));
              }
            }
            end_step(conversation.cache, conversation.sequence, 0);
            CHECK(conversation.sequence.save() == before_step);
          }
        }
      }
    }
  }
}

TEST_CASE("a step after a search takes back what it sealed") {
  const Text text(Shape{}, 300, 22);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      for (const int32_t prompt : {127, 128, 140}) {
        for (const int32_t chunk : {30, 140}) {
          for (const Way way : {Way::kExtend, Way::kAttend}) {
            CAPTURE(backend);
            CAPTURE(policy);
            CAPTURE(prompt);
            CAPTURE(chunk);
            CAPTURE(way == Way::kExtend);
            Conversation stepped(backend, policy);
            stepped.sequence.reserve(300);
            feed(stepped.cache, stepped.sequence, text, way, chunk, 0, prompt);
            begin_step(stepped.cache, stepped.sequence, 1);  // which may find scales
            end_step(stepped.cache, stepped.sequence, 0);
            const Snapshot before = stepped.sequence.save();
            for (const int32_t n : {20, 32}) {
              CAPTURE(n);
              begin_step(stepped.cache, stepped.sequence, 32);
              feed(stepped.cache, stepped.sequence, text, Way::kAppend, 1, prompt, prompt + n);
              end_step(stepped.cache, stepped.sequence, 0);
              CHECK(stepped.sequence.save() == before);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("steps keep queries that count, and find scales between them") {
  const Text text(Shape{}, 400, 17);
  const Text draft(Shape{}, 400, 18);
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      for (const Way way : {Way::kExtend, Way::kAttend}) {
        CAPTURE(backend);
        CAPTURE(policy);
        CAPTURE(way == Way::kExtend);
        Conversation plain(backend, policy);
        feed(plain.cache, plain.sequence, text, way, 40, 0, 399);
        feed(plain.cache, plain.sequence, text, way, 1, 399, 400);
        for (const int32_t chunk : {9, 100, 300}) {
          CAPTURE(chunk);
          Conversation stepped(backend, policy);
          for (int32_t at = 0; at < 400; at += chunk) {
            const int32_t n = std::min(chunk, 400 - at);
            // What is taken back leaves nothing behind.
            begin_step(stepped.cache, stepped.sequence, n);
            feed(stepped.cache, stepped.sequence, draft, way, n, at, at + n);
            end_step(stepped.cache, stepped.sequence, 0);
            begin_step(stepped.cache, stepped.sequence, n);
            feed(stepped.cache, stepped.sequence, text, way, n, at, at + n);
            CHECK_THROWS_WITH_AS(stepped.sequence.reserve(10), doctest::Contains("step"), kvq_test::api::Error);
            end_step(stepped.cache, stepped.sequence, n);
          }
          CHECK(stepped.sequence.save() == plain.sequence.save());
        }
      }
      // Draft tokens of which some are kept: their queries change the scales a little.
      Conversation drafted(backend, policy);
      for (int32_t at = 0; at < 400; at += 2) {
        begin_step(drafted.cache, drafted.sequence, 4);
        for (const auto& [from, begin] : {std::pair(&text, at), std::pair(&draft, at + 2)}) {
          feed(drafted.cache, drafted.sequence, *from, Way::kExtend, 2, begin, std::min(begin + 2, 400));
        }
        end_step(drafted.cache, drafted.sequence, 2);
      }
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kExtend, 40, 0, 400);
      CHECK(drafted.sealed_pages() == plain.sealed_pages());
      CHECK(error_of(drafted.sequence, text) < 1.1 * error_of(plain.sequence, text));
    }
  }
}

TEST_CASE("a policy that is given while tokens wait, or to an empty sequence, finds scales for its formats") {
  const Text text(Shape{}, 400, 19);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    for (const std::string& policy : policies()) {
      CAPTURE(policy);
      Conversation plain(backend, policy);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 50, 0, 399);
      feed(plain.cache, plain.sequence, text, Way::kAttend, 1, 399, 400);
      for (const int32_t before : {0, 50, 128, 200}) {
        CAPTURE(before);
        // gs3 pages are sealed in nothing else yet.
        Conversation recoded(backend, policy_of("gs3", "gs3"));
        const kvq_test::api::Policy to = kvq_test::api::Policy::load(recoded.context, policy);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, before, 0, before);
        CHECK(recoded.sealed_pages() == 0);
        auto needs = recoded.sequence.predict_recode(to);
        recoded.sequence.recode(to);
        CHECK(needs.bytes_after == recoded.sequence.usage().total_bytes);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, 50, before, 399);
        feed(recoded.cache, recoded.sequence, text, Way::kAttend, 1, 399, 400);
        // A layer in FP16 has scales where it waited with others.
        if (policy.find("fp16, values: fp16") == std::string::npos) {
          CHECK(recoded.sequence.save() == plain.sequence.save());
        }
      }
      Conversation given(backend, "fp16");
      given.sequence.recode(kvq_test::api::Policy::load(given.context, policy));
      feed(given.cache, given.sequence, text, Way::kAttend, 50, 0, 399);
      feed(given.cache, given.sequence, text, Way::kAttend, 1, 399, 400);
      CHECK(given.sequence.save() == plain.sequence.save());
    }
    // A step's pages are in nobody's way; tokens that are too alike wait on.
    for (const int32_t period : {400, 2}) {
      CAPTURE(period);
      Text other = text;
      other.repeat(period, 400);
      Conversation stepped(backend, policy_of("gs1", "gs1"));
      Conversation direct(backend, kGs2);
      begin_step(stepped.cache, stepped.sequence, 200);
      feed(stepped.cache, stepped.sequence, other, Way::kAttend, 200, 0, 200);
      end_step(stepped.cache, stepped.sequence, 200);
      const kvq_test::api::Policy gs2 = kvq_test::api::Policy::load(stepped.context, "gs2");
      const uint64_t predicted = stepped.sequence.predict_recode(gs2).bytes_after;
      stepped.sequence.recode(gs2);
      // The step's own pages go, too.
      CHECK(stepped.sequence.usage().total_bytes <= predicted);
      CHECK((stepped.sealed_pages() > 0) == (period > 16));
      feed(stepped.cache, stepped.sequence, other, Way::kAttend, 1, 200, 201);
      feed(direct.cache, direct.sequence, other, Way::kAttend, 200, 0, 200);
      feed(direct.cache, direct.sequence, other, Way::kAttend, 1, 200, 201);
      CHECK(stepped.sequence.save() == direct.sequence.save());
    }
    // A sequence in FP16 gets no scales for the tokens that it has, but is like any other once it is empty.
    Conversation float16(backend, "fp16");
    feed(float16.cache, float16.sequence, text, Way::kAttend, 50, 0, 200);
    const kvq_test::api::Policy gs2 = kvq_test::api::Policy::load(float16.context, "gs2");
    const uint64_t predicted = float16.sequence.predict_recode(gs2).bytes_after;
    float16.sequence.recode(gs2);
    CHECK(float16.sequence.usage().total_bytes == predicted);
    CHECK(float16.sealed_pages() > 0);
    float16.sequence.truncate(0);
    feed(float16.cache, float16.sequence, text, Way::kExtend, 50, 0, 400);
    Conversation fresh(backend, kGs2);
    feed(fresh.cache, fresh.sequence, text, Way::kExtend, 50, 0, 400);
    CHECK(float16.sequence.save() == fresh.sequence.save());
    // Without calibration, what waits is sealed as it is.
    Conversation waiting(backend, kGs2);
    feed(waiting.cache, waiting.sequence, text, Way::kExtend, 50, 0, 100);
    waiting.sequence.recode(kvq_test::load_plain_policy(waiting.context, "int4"));
    CHECK(waiting.sealed_pages() > 0);
    Conversation plain(backend, "int4");
    feed(plain.cache, plain.sequence, text, Way::kExtend, 50, 0, 100);
    CHECK(waiting.sequence.save() == plain.sequence.save());
  }
}

}  // namespace conformance::calibration_test
