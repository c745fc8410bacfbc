"""vLLM serves the embedded model, or the one that KVQ_VLLM_TEST_MODEL names, with kvq's cache and with its own."""

import statistics

import pytest

pytest.importorskip("vllm")

from engines import Answer, Result, run, text_tokens  # noqa: E402

N = 160
LENGTHS = [7, 32, 100, 250, 333]
PROMPTS = [text_tokens(length, 400 * i) for i, length in enumerate(LENGTHS)]
SHARED = text_tokens(300, 3000)
QUESTIONS = [SHARED + text_tokens(20 + 11 * i, 4000 + 100 * i) for i in range(4)]


def served(*arguments, **options) -> Result:
    result = run(*arguments, **options)
    assert not result.error, result.error
    assert result.is_kvq == (arguments[0] is not None)
    return result


@pytest.fixture(scope="session")
def own() -> Result:
    """vLLM's own cache."""
    return served(None, [PROMPTS, QUESTIONS], N)


def assert_same_tokens(answer: Answer, expected: Answer) -> None:
    """The same tokens, up to one that rounding decides: both were as likely."""
    for tokens, others, choices in zip(answer.tokens, expected.tokens, expected.choices, strict=True):
        assert len(tokens) == len(others) == N
        differ = next((i for i in range(N) if tokens[i] != others[i]), None)
        if differ is not None:
            likelihoods = choices[differ]
            assert likelihoods.get(tokens[differ], -99) == pytest.approx(likelihoods[others[differ]], abs=0.02), differ


def test_fp16_gives_the_tokens_of_vllms_own_cache(own):
    result = served("fp16", [PROMPTS, QUESTIONS], N)
    for answer, expected in zip(result.answers, own.answers, strict=True):
        assert_same_tokens(answer, expected)
    same = sum(a == b for a, b in zip(result.answers[0].tokens, own.answers[0].tokens, strict=True))
    assert same >= len(PROMPTS) - 1
    assert result.n_blocks == own.n_blocks


def test_fp16_goes_on_from_prefixes_that_are_there(own):
    """A second turn with the first one's prompt and answer, then questions with a prompt in common."""
    again = [p + t + text_tokens(9, 50) for p, t in zip(PROMPTS, own.answers[0].tokens, strict=True)]
    turns = [PROMPTS, again, QUESTIONS[:1], QUESTIONS]
    expected = served(None, turns[1:2], N)
    result = served("fp16", turns, N, enable_prefix_caching=True)
    assert_same_tokens(result.answers[1], expected.answers[0])
    assert_same_tokens(result.answers[3], own.answers[1])
    for i, cached in enumerate(result.answers[1].cached):
        same = result.answers[0].tokens[i] == own.answers[0].tokens[i]
        stored = LENGTHS[i] + (N - 1 if same else 0)  # the last token has not been computed
        assert cached >= stored // 32 * 32
    assert min(result.answers[3].cached) >= len(SHARED) // 32 * 32


@pytest.mark.parametrize("block_tokens", [32, 128])
def test_fp16_takes_prompts_in_chunks(own, block_tokens):
    result = served("fp16", [PROMPTS], N, max_num_batched_tokens=48, block_size=block_tokens)
    assert_same_tokens(result.answers[0], own.answers[0])


def test_fp16_computes_preempted_sequences_again(own):
    result = served("fp16", [PROMPTS], N, num_gpu_blocks_override=36)
    assert result.preemptions > 0
    assert_same_tokens(result.answers[0], own.answers[0])


def test_fp16_in_a_process_of_its_own(own):
    result = run("fp16", [PROMPTS], N, environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    assert not result.error, result.error
    assert_same_tokens(result.answers[0], own.answers[0])


def test_fp16_over_two_processes_with_half_of_the_heads_each(own):
    result = run("fp16", [PROMPTS], N, tensor_parallel_size=2)
    assert not result.error, result.error
    assert_same_tokens(result.answers[0], own.answers[0])


def test_gs4_in_a_batch_gives_the_tokens_of_each_sequence_alone():
    alone = served("gs4", [[prompt] for prompt in PROMPTS], N, max_num_batched_tokens=1024, max_num_seqs=1)
    batch = served("gs4", [PROMPTS], N, max_num_batched_tokens=1024)
    expected = Answer(
        [answer.tokens[0] for answer in alone.answers], [answer.choices[0] for answer in alone.answers], [], []
    )
    assert_same_tokens(batch.answers[0], expected)


# `kvq eval perplexity` on the sample text, 8 windows of 1024 tokens in chunks of 32, with policies like
# {version: 1, keys: gs4, values: gs4, sink: 0, calibrate: none}: rise of the loss and KL beside FP16, in nats. The
# larger ones of the embedded model and of one with 32 million parameters.
LOSSES = {"int8": (0.0, 0.00001), "int4+hadamard": (0.0005, 0.0004), "gs4": (0.0013, 0.0008), "gs2": (0.0157, 0.0107)}
WINDOWS = [text_tokens(1000, 1024 * i) for i in range(4)]
IN_CHUNKS = {"max_num_batched_tokens": 128, "long_prefill_token_threshold": 32}


@pytest.fixture(scope="session")
def of_windows() -> Answer:
    """vLLM's own cache."""
    return served(None, [WINDOWS], losses=True, **IN_CHUNKS).answers[0]


@pytest.mark.parametrize("policy", ["fp16", *LOSSES])
def test_formats_lose_what_kvqs_own_runner_says(of_windows, policy):
    result = served(policy, [WINDOWS], losses=True, **IN_CHUNKS)
    expected = sum(of_windows.losses, [])
    differences = [a - b for a, b in zip(sum(result.answers[0].losses, []), expected, strict=True)]
    rise = statistics.fmean(differences)
    error = statistics.stdev(differences) / len(differences) ** 0.5
    half_square = statistics.fmean(x * x for x in differences) / 2  # the KL, where it is small
    print("%s: %+.5f ± %.5f, KL about %.5f" % (policy, rise, error, half_square))
    rise_there, kl_there = LOSSES.get(policy, (0, 0))
    assert rise < 3 * rise_there + 3 * error + 0.0003
    assert half_square < 6 * kl_there + 0.0001


def test_gs4_stays_itself_through_chunks_prefixes_and_preemption(of_windows):
    """Windows in two halves, the second ones with the first in common, in fewer blocks than they need together."""
    halves = [window[:500] for window in WINDOWS]
    options = {"enable_prefix_caching": True, "num_gpu_blocks_override": 80, **IN_CHUNKS}
    result = served("gs4", [halves, WINDOWS], 60, **options)
    assert result.preemptions > 0
    for choices, expected in zip(result.answers[1].choices, of_windows.choices, strict=True):
        both = choices[0].keys() & expected[0].keys()
        assert len(both) >= 4
        for token in both:
            assert choices[0][token] == pytest.approx(expected[0][token], abs=0.3)


def test_gs4_has_room_for_more_tokens(own):
    result = served("gs4", [PROMPTS[:1]], 1)
    ratio = result.n_blocks * result.block_tokens / (own.n_blocks * own.block_tokens)
    print("%d blocks in place of %d: %.2f times" % (result.n_blocks, own.n_blocks, ratio))
    assert 3.4 <= ratio < 4  # 4 bits of 16, and scales
