"""Engines of vLLM in forked processes, each with its own settings, and what they answer.

A fork has all modules imported and shares nothing else with other engines: no plug-in, no process group, no threads.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import pathlib
import shutil
import tempfile
import traceback
from dataclasses import dataclass, field
from typing import Any, Optional

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = pathlib.Path(os.environ.get("KVQ_VLLM_TEST_MODEL") or ROOT / "models" / "demo")
OPTIONS = {
    "dtype": "float16",
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "block_size": 32,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "enable_prefix_caching": False,
    "kv_cache_memory_bytes": 64 << 20,
    "disable_log_stats": True,
}


@dataclass
class Answer:
    tokens: list[list[int]]
    """Of each prompt."""
    choices: list[list[dict[int, float]]]
    """Of each prompt and place: log-likelihoods of the likeliest tokens."""
    losses: list[list[float]]
    """Of each prompt's tokens but the first, if they were asked for."""
    cached: list[int]
    """Tokens of each prompt that were there already."""


@dataclass
class Result:
    answers: list[Answer] = field(default_factory=list)
    """Of each turn."""
    n_blocks: int = 0
    block_tokens: int = 0
    preemptions: int = 0
    is_kvq: bool = False
    """Blocks are kvq's, as far as they are in the same process as the engine."""
    error: str = ""


def import_vllm() -> None:
    """Import what engines need before they are forked, so that it happens once: importing takes longer than they do."""
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.v1.attention.backends.cpu_attn
    import vllm.v1.engine.core
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker  # noqa: F401


@functools.cache
def folder_of(model: pathlib.Path) -> pathlib.Path:
    """The files of a model alone: vLLM reads all safetensors beside them as weights, codebooks too."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvq-vllm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(model / name)
    return folder


def text_tokens(n: int, begin: int = 0) -> list[int]:
    """Tokens of the sample text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    text = (ROOT / "models" / "demo" / "sample.txt").read_text(encoding="utf-8")
    return list(tokenizer.encode(text[: 12 * (begin + n)], add_special_tokens=False).ids[begin : begin + n])


def run(
    policy: Optional[str],
    turns: list[list[list[int]]],
    n: int = 1,
    losses: bool = False,
    environment: Optional[dict[str, str]] = None,
    model: Any = None,
    **options: Any,
) -> Result:
    """Continue prompts by `n` greedy tokens, the prompts of each turn at once.

    :param policy: kvq's; None: vLLM's own cache.
    :param losses: also the negative log-likelihoods of the prompts' tokens.
    :param options: of vLLM, beside ``OPTIONS``.
    """
    import_vllm()
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    variables = {**({"KVQ_VLLM_POLICY": policy} if policy else {}), **(environment or {})}
    process = fork.Process(
        target=_child,
        args=(writer, variables, str(model or folder_of(MODEL)), turns, n, losses, {**OPTIONS, **options}),
    )
    process.start()
    writer.close()
    try:
        result = reader.recv() if reader.poll(600) else Result(error="no answer in 600 s")
    except EOFError:
        result = Result(error="the process has ended")
    process.join(60)
    if process.is_alive():
        process.kill()
    return result


def _child(writer: Any, variables: dict[str, str], model: str, turns: Any, n: int, losses: bool, options: Any) -> None:
    os.environ.update(variables)
    try:
        result = _run(model, turns, n, losses, options)
    except BaseException:
        result = Result(error=traceback.format_exc())
    writer.send(result)
    writer.close()
    os._exit(0)  # without vLLM's handlers of an exit, which may wait for ever after an error


def _run(model: str, turns: Any, n: int, losses: bool, options: Any) -> Result:
    from vllm import LLM, SamplingParams
    from vllm.v1.core.sched import scheduler

    result = Result()
    preempt = scheduler.Scheduler._preempt_request

    def counted(*arguments: Any, **others: Any) -> Any:
        result.preemptions += 1
        return preempt(*arguments, **others)

    scheduler.Scheduler._preempt_request = counted
    llm = LLM(model, **options)
    parameters = SamplingParams(
        temperature=0,
        max_tokens=n,
        detokenize=False,
        ignore_eos=True,
        logprobs=5,
        prompt_logprobs=0 if losses else None,
    )
    for prompts in turns:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        of_prompts = [
            [-each[ids[i]].logprob for i, each in enumerate(output.prompt_logprobs or []) if each]
            for ids, output in zip(prompts, outputs, strict=True)
        ]
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        choices = [
            [{token: one.logprob for token, one in each.items()} for each in output.outputs[0].logprobs]
            for output in outputs
        ]
        cached = [output.num_cached_tokens or 0 for output in outputs]
        result.answers.append(Answer(tokens, choices, of_prompts, cached))
    cache = llm.llm_engine.vllm_config.cache_config
    result.n_blocks, result.block_tokens = cache.num_gpu_blocks, cache.block_size
    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    worker = getattr(core and core.model_executor, "driver_worker", None)
    if worker is not None:  # else it is in another process
        spec = worker.worker.model_runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec
        result.is_kvq = type(spec).__name__ == "KvqSpec"
    return result
