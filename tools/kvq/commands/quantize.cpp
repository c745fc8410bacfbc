#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "commands/commands.h"
#include "llama/system.h"
#include "terminal/files.h"
#include "terminal/progress.h"
#include "train/balancing.h"
#include "train/quantization.h"

namespace cli {
namespace {

struct QuantizeOptions : Quantization {
  std::filesystem::path balanced;  // directory; empty: the model is quantized as it is
  bool force = false;
  bool json = false;
};

void print_result(const QuantizeOptions& options, const QuantizedModel& result) {
  const bool has_hessians = !result.note.empty();
  Figures layers;
  for (const QuantizedLayer& each : result.layers) {
    const bool resumed = each.seconds < 0.0;
    layers.begin_row();
    layers.add("layer", "name", each.layer.name, each.layer.name);
    layers.add("weights", "", {}, std::to_string(each.layer.out) + " x " + std::to_string(each.layer.in));
    layers.add("scheme", "scheme", each.scheme, each.scheme);
    layers.add("", "out", each.layer.out, "");
    layers.add("", "in", each.layer.in, "");
    layers.add("bits", "bits", each.bits, 3);
    layers.add("error", "error", each.error, 6);
    const std::string proxy = has_hessians ? number_text(each.proxy_error, 6) : "-";
    layers.add("proxy error", has_hessians ? "proxy_error" : "", each.proxy_error, proxy);
    layers.add("seconds", "seconds", std::max(each.seconds, 0.0), resumed ? "kept" : number_text(each.seconds, 2));
    layers.add("", "resumed", resumed, "");
  }
  if (options.json) {
    Json object = {{"file", options.out.string()}, {"bytes", result.bytes}};
    if (!options.scheme.empty()) object["scheme"] = options.scheme;
    if (!options.plan.empty()) object["plan"] = options.plan;
    if (!options.balanced.empty()) object["balanced"] = options.balanced.string();
    object["bits"] = result.bits();
    object["error"] = result.error();
    if (has_hessians) object["proxy_error"] = result.proxy_error();
    object["seconds"] = result.seconds();
    object["weights_per_second"] = result.weights_per_second();
    object["layers"] = layers.objects();
    return print_json(object);
  }
  layers.begin_row(false);
  for (const std::string& text :
       {std::string("all"), std::string(), std::string(), number_text(result.bits(), 3), number_text(result.error(), 6),
        has_hessians ? number_text(result.proxy_error(), 6) : "-", number_text(result.seconds(), 2)}) {
    layers.add("all", "", {}, text);
  }
  print_text(layers.table() + "\nerrors are squared, over squared norms" +
             (has_hessians ? ", the proxy's as seen in outputs for " + result.note : "") + "\n" +
             (result.weights_per_second() > 0.0
                  ? number_text(1e-6 * result.weights_per_second(), 2) + " million weights a second\n"
                  : "") +
             written_text(options.out.string(), result.bytes));
}

/// Ask on the terminal whether a file may be replaced if there is one; an Error if not, a UsageError if there is nobody
/// to ask.
void ask_to_replace(const std::filesystem::path& path) {
  std::error_code failure;
  const uint64_t size = std::filesystem::file_size(path, failure);
  if (failure) return;
  const std::string exists = path.string() + " is there already (" + bytes_text(size) + ")";
  if (!llama::is_terminal(stdin) || !llama::is_terminal(stderr)) {
    throw UsageError("--out " + exists + ": --force (-f) replaces it");
  }
  std::fputs((exists + ". Replace it? [y/N] ").c_str(), stderr);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "Y" && answer != "yes") throw llama::Error(path.string() + " stays as it was");
}

QuantizedModel quantize(const QuantizeOptions& options) {
  try {
    return quantize_model(options);
  } catch (const Interrupted& interrupted) {
    if (!std::filesystem::exists(options.partial())) throw;
    throw llama::Error(std::string(interrupted.what()) + "; the same command goes on from the matrices kept in " +
                       options.partial().string());
  }
}

/// Write a balanced checkpoint of the model, which is then the one to quantize.
void balance(QuantizeOptions& options) {
  const std::string model = std::exchange(options.model, options.balanced.string());
  if (std::filesystem::exists(options.partial())) return;  // an earlier run did
  const llama::ModelConfig config = llama::load_config(llama::path_of(model));
  const llama::Checkpoint checkpoint(llama::path_of(model));
  Progress progress("balancing", config.n_layers);
  const kvq::Centres scales = find_scales(make_context(options.compute), checkpoint, config, {.fold = true}, progress);
  write_balanced(options.balanced, llama::path_of(model), checkpoint, config, scales);
}

void run(QuantizeOptions options) {
  if (options.scheme.empty() && options.plan.empty()) throw UsageError("give --scheme or --plan");
  if (!options.scheme.empty()) check_scheme(options.scheme);
  check_writable(options.out);
  if (!options.force) ask_to_replace(options.out);
  if (!options.balanced.empty()) balance(options);
  print_result(options, quantize(options));
}

}  // namespace

void add_quantize(Command app) {
  Command command = app.add_command("quantize", "Write the linear layers of a model in 1 to 8 bits");
  auto options = std::make_shared<QuantizeOptions>();
  add_model_option(command, options->model);
  command.add_option(
      "--scheme", options->scheme,
      "nuq-BITS, vq-BITS, tcq-BITS, tcx-BITS or fp16, for example nuq-4, vq-2.5 or tcq-2.75; with --plan, "
      "of the matrices that the plan leaves out");
  command.add_option("--plan", options->plan, "File of `kvq plan` that gives every matrix a scheme of its own");
  command
      .add_option("--out", options->out,
                  "File to write; finished layers are kept in FILE.partial meanwhile, and taken up by the next run")
      .not_empty()
      .required();
  command
      .add_option(
          "--balance", options->balanced,
          "New directory for a copy of the model without outlier channels (kvq balance), which is quantized in its "
          "place and runs with FILE")
      .not_empty();
  command.add_flag("--force,-f", options->force, "Replace the file if it is there, without asking");
  command
      .add_option("--hessian", options->hessian_texts,
                  "Text file to run the model on, so that codes are chosen by what outputs lose; several are mixed")
      .repeatable_with_dots();
  command.add_number("--hessian-tokens", options->hessian_tokens, int64_t{1}, int64_t{1} << 40,
                     "Tokens of the text, in windows of 2048");
  command.add_option_function(
      "--hessian-memory",
      [options](const std::string& text) { options->hessian_bytes = parse_byte_count(text, "--hessian-memory"); },
      "Bytes that --hessian may take at once, such as 6GiB, of the machine's memory or, with --device cuda, the GPU's; "
      "if all layers' take more, the text is run several times (default: half of what there is)");
  command.add_choice("--rounding", options->rounding, {"ldlq", "nearest"},
                     "With --hessian: correct every column for the errors of others, or round each weight alone");
  command.add_number("--damping", options->damping, 0.0, 1.0,
                     "Share of the Hessian's mean diagonal to add to its diagonal");
  add_seed_option(command, options->seed, "Of the rotation's signs");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
