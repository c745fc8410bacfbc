#pragma once

// What every command needs.

#include "options/model_options.h"
#include "terminal/output.h"

namespace cli {

/// Each adds one command, its options and the function that runs it.
void add_demo(Command app);
void add_info(Command app);
void add_doctor(Command app);
void add_generate(Command app);
void add_chat(Command app);
void add_plan(Command app);
void add_balance(Command app);
void add_quantize(Command app);
void add_eval_perplexity(Command eval);
void add_eval_generate(Command eval);
void add_eval_needle(Command eval);
void add_eval_error(Command eval);
void add_eval_eviction(Command eval);
void add_train_centres(Command train);
void add_train_codebook(Command train);
void add_train_router(Command train);
void add_bench_append(Command bench);
void add_bench_compress(Command bench);
void add_bench_recode(Command bench);
void add_bench_decode(Command bench);
void add_bench_attend(Command bench);
void add_bench_linear(Command bench);
void add_bench_quantize(Command bench);
/// `manual` and `complete`, which `--help` does not show. Refers to `app`.
void add_reference(Command app);

}  // namespace cli
