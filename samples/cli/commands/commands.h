#pragma once

namespace CLI {
class App;
}

namespace cli {

/// Each adds one command, its options and the function that runs it.
void add_demo(CLI::App& app);
void add_info(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_plan(CLI::App& app);
void add_quantize(CLI::App& app);
void add_eval_perplexity(CLI::App& eval);
void add_eval_generate(CLI::App& eval);
void add_eval_needle(CLI::App& eval);
void add_eval_error(CLI::App& eval);
void add_eval_eviction(CLI::App& eval);
void add_train_centres(CLI::App& train);
void add_train_codebook(CLI::App& train);
void add_train_router(CLI::App& train);
void add_bench_append(CLI::App& bench);
void add_bench_compress(CLI::App& bench);
void add_bench_decode(CLI::App& bench);
void add_bench_attend(CLI::App& bench);
void add_bench_linear(CLI::App& bench);
void add_bench_quantize(CLI::App& bench);
/// `manual` and `complete`, which `--help` does not show. Refers to `app`.
void add_reference(CLI::App& app);

}  // namespace cli
