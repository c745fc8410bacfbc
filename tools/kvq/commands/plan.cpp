#include "commands/plan.h"

#include <algorithm>

#include "commands/commands.h"
#include "options/cache_shape.h"
#include "terminal/files.h"

namespace cli {
namespace {

constexpr int32_t kUsualContext = 2048;

void check(const PlanOptions& options) {
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  if (!options.memory.empty()) parse_byte_count(options.memory, "--memory");
  if (options.weights_only && options.cache_only) {
    throw UsageError("--weights-only and --cache-only are both given, which leaves nothing to plan");
  }
  const int targets =
      (options.target_bits > 0.0 ? 1 : 0) + (options.target_bytes > 0 ? 1 : 0) + (options.memory.empty() ? 0 : 1);
  if (targets > 1) throw UsageError("--memory, --target-bits and --target-bytes say the same: give one of them");
  if (goal_of(options) != KVQ_PLAN_LOSS && options.max_loss == 0.0) {
    throw UsageError("--goal " + options.goal + " needs --max-loss: what may be lost for it");
  }
  if (targets == 0 && options.target_latency == 0.0 && options.max_loss == 0.0 && options.check == 0) {
    throw UsageError("give --memory, --target-bits, --target-bytes, --target-latency, or --max-loss with --goal");
  }
  if (options.target_bits > 0.0 && !options.weights_only && !options.cache_only) {
    throw UsageError(
        "--target-bits goes with --weights-only or --cache-only; for both together use --memory or --target-bytes");
  }
}

bool is_plain(const SpecParts& parts) {
  const bool needs_file = parts.name == kCommvq || parts.name == kMoqae || !parts.variant.empty() ||
                          parts.base.find("+centres") != std::string::npos;
  return !needs_file && !names_file(parts.base) && parts.files.empty() && parts.method.empty() &&
         parts.scales == SpecParts::Scales::kDefault;
}

/// PlanOptions that say how to choose, which takes measurements on the weights.
void refuse_choices(const PlanOptions& options) {
  const std::pair<const char*, bool> given[] = {{"--out", !options.out.empty()},
                                                {"--frontier", options.frontier},
                                                {"--check", options.check > 0},
                                                {"--max-loss", options.max_loss > 0.0},
                                                {"--target-bits", options.target_bits > 0.0},
                                                {"--target-bytes", options.target_bytes > 0},
                                                {"--target-latency", options.target_latency > 0.0},
                                                {"--weights-only", options.weights_only},
                                                {"--cache-only", options.cache_only},
                                                {"--evict", !options.eviction.empty()}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    const std::string known = options.shape.empty() ? options.model + " is its configuration" : "--shape is its caches";
    throw UsageError(std::string(name) + " needs the model's weights to measure; " + known +
                     " alone, of which kvq plan says what fits");
  }
}

/// Whether nothing is asked for but what to do with this memory.
bool asks_what_fits(const PlanOptions& options) {
  return !options.memory.empty() && !options.json && options.out.empty() && options.check == 0 &&
         options.target_latency == 0.0 && options.max_loss == 0.0;
}

void run(const PlanOptions& options) {
  if (!options.shape.empty() || !llama::Checkpoint::is_in(llama::path_of(options.model))) {
    refuse_choices(options);
    return print_what_fits(options);
  }
  check(options);
  if (!options.out.empty()) check_writable(options.out);
  PlanOptions filled = options;
  if (filled.context == 0) {
    filled.context = std::min(kUsualContext, llama::load_config(llama::path_of(options.model)).max_positions);
  }
  if (asks_what_fits(filled) && print_if_it_fits(filled)) {
    return print_text("for a plan all the same, which takes minutes to measure: --out FILE\n");
  }
  choose_plan(filled);
}

}  // namespace

kvq_plan_goal goal_of(const PlanOptions& options) {
  if (options.goal == "bytes") return KVQ_PLAN_BYTES;
  return options.goal == "seconds" ? KVQ_PLAN_SECONDS : KVQ_PLAN_LOSS;
}

void check_formats(kvq_context* context, const std::vector<std::string>& formats, bool pairs) {
  for (const std::string& format : formats) {
    const SpecParts parts = parse_spec("--format", format);
    if (!is_plain(parts)) {
      throw UsageError(parts.given + ": must be a format alone, such as gs2, without a file, scales or eviction");
    }
    if (!pairs && format.find('/') != std::string::npos) {
      throw UsageError(parts.given + ": name one format; a plan chooses which keys and which values have it");
    }
    load_spec(context, parts);
  }
}

void add_plan(Command app) {
  Command command =
      app.add_command("plan", "Find the schemes of matrices and the formats of caches that lose least in given memory");
  auto options = std::make_shared<PlanOptions>();
  Command model = command.add_alternatives("Model");
  model
      .add_option("--model", options->model,
                  "Model directory. A config.json of any decoder, or a directory with nothing else, is enough to learn "
                  "what fits: bytes of weights and caches in each format and, with --memory, the longest context. What "
                  "is lost takes the weights to measure: without them there is no plan, and no options but --memory, "
                  "--context, --batch, --scheme, --format and --json matter")
      .not_empty();
  model
      .add_option(
          "--shape", options->shape,
          std::string("Attention layers that are all alike, of which caches alone are counted: ") + kCacheShapeForm)
      .not_empty();
  command.add_option("--text", options->text,
                     "Text file that the model reads to be measured (default: a text that it writes itself)");
  command.add_number("--tokens", options->tokens, int64_t{64}, int64_t{1} << 30,
                     "Tokens of the text, about; with fewer than " + std::to_string(kTokensForScales) +
                         " caches are planned without scales of channels");
  command
      .add_option("--target-bits", options->target_bits,
                  "Mean bits of a weight of the linear layers, or of a scalar of the cache, everything counted")
      .range(0.1, 32.0);
  command.add_option_function(
      "--target-bytes",
      [options](const std::string& text) { options->target_bytes = parse_byte_count(text, "--target-bytes"); },
      "Bytes of linear layers and caches together, such as 6GiB");
  command
      .add_option("--memory", options->memory,
                  "Bytes of everything: linear layers, other tensors, caches and their work space, such as 6GiB")
      .not_empty();
  command
      .add_option("--target-latency", options->target_latency,
                  "Milliseconds of a step of decoding on this machine, which is measured; alone or with another target")
      .range(1e-6, 1e9);
  command.add_choice("--goal", options->goal, {"loss", "bytes", "seconds"},
                     "What is made as small as possible: seconds are those of a step of decoding");
  command.add_option("--max-loss", options->max_loss, "Nats of divergence that may be lost").range(1e-9, 1e9);
  command.add_flag("--fusion", options->fusion,
                   "With --target-latency: layers that share inputs share a kernel only if they have one scheme");
  command.add_flag("--weights-only", options->weights_only, "Plan linear layers alone");
  command.add_flag("--cache-only", options->cache_only, "Plan caches alone");
  add_context_option(command, options->context, 1, "Tokens of a sequence")
      .show_default(std::to_string(kUsualContext) + ", or what the model takes");
  command.add_number("--batch", options->batch, 1, 1 << 20, "Sequences");
  add_schemes_option(command, options->schemes, "Of linear layers, to choose among; may be repeated (default: all)");
  command.add_option("--format", options->formats, "Of keys and values, to choose among; may be repeated").repeatable();
  command
      .add_option("--evict", options->eviction,
                  "Let the plan evict half or more of a prompt by this method, such as adasnap, where that loses less")
      .not_empty();
  command.add_option("--measurements", options->measurements,
                     "File of what has been measured, which grows (default: MODEL.measurements.json)");
  command.add_option("--out", options->out, "File to write the plan to (YAML)").not_empty();
  command.add_flag("--frontier", options->frontier,
                   "With --json: what the best plans of all sizes lose, and those that are the same for all");
  command
      .add_option("--check", options->check,
                  "Instead of planning, carry out N random plans and compare what they lose with what is expected")
      .range(2, 1 << 20);
  add_chunk_option(command, options->chunk, "Tokens that the model reads at once while it is measured");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
