"""The table of tails alone, without vLLM."""

import random

import pytest

from kvq_vllm._tails import LostTail, TailTable

BLOCK = 64


def step(table, *rows):
    """Rows of (tokens before, tokens after, blocks)."""
    starts, lengths, blocks = zip(*rows, strict=True)
    return table.assign(starts, lengths, lambda row, place: blocks[row][place])


def test_a_sequence_keeps_its_tail_while_its_page_is_open():
    table = TailTable(4, BLOCK)
    first = step(table, (0, 5, [7]), (0, 40, [3]))
    assert len(set(first)) == 2
    assert step(table, (5, 6, [7]), (40, 41, [3])) == first
    assert step(table, (41, 70, [3, 9]), (6, 31, [7])) == first[::-1]
    assert step(table, (70, 71, [3, 9]), (31, 32, [7])) == first[::-1]


def test_sequences_that_end_make_room():
    table = TailTable(2, BLOCK)
    for block in range(100):
        (tail,) = step(table, (0, 5, [block]))
        assert tail in (0, 1)


def test_twice_as_many_tails_as_a_batch_has_sequences_suffice():
    """Each tail is where its sequence left it, whatever ends, is preempted or comes, in blocks that are used again."""
    number = random.Random(3)
    batch = 4
    table = TailTable(2 * batch, BLOCK)
    written = {}  # tail: what its last step has stored
    free = list(range(40))
    running = []  # [name, length, blocks]
    for name in range(3000):
        for sequence in running[:]:
            if number.random() < 0.1:  # it ends or is preempted, which the table is not told
                running.remove(sequence)
                free += sequence[2]
        number.shuffle(free)
        if len(running) < batch:
            shared = number.choice([0, 0, BLOCK])  # tokens of a prefix that is there
            running.append([name, shared, [1000] if shared else []])
        number.shuffle(running)
        rows = []
        for sequence in running:
            _, start, blocks = sequence
            sequence[1] = start + number.choice([1, 1, 1, 7, 32, 100])
            blocks += [free.pop() for _ in range(-(-sequence[1] // BLOCK) - len(blocks))]
            rows.append((start, sequence[1], blocks))
        tails = step(table, *rows)
        assert len(set(tails)) == len(tails)
        for tail, (who, _, _), (start, length, _) in zip(tails, running, rows, strict=True):
            if start % 32:
                assert written[tail] == (who, start)
            written[tail] = (who, length)
        for sequence in [one for one in running if one[1] > 500]:
            running.remove(sequence)
            free += [block for block in sequence[2] if block != 1000]
        free = [block for block in free if block != 1000]


def test_a_lost_tail_is_found():
    table = TailTable(2, BLOCK)
    step(table, (0, 5, [1]))
    step(table, (0, 5, [2]))
    step(table, (0, 5, [3]))
    with pytest.raises(LostTail, match=r"5 tokens has lost the tail of its page in block 1.*KVQ_VLLM_TAILS"):
        step(table, (5, 6, [1]))


def test_a_tail_of_another_length_is_not_taken_for_the_sequences_own():
    table = TailTable(2, BLOCK)
    step(table, (0, 5, [1]))
    with pytest.raises(LostTail, match="4 tokens"):
        step(table, (4, 6, [1]))


def test_a_batch_needs_as_many_tails_as_it_has_sequences():
    with pytest.raises(LostTail, match="more sequences than the 1 tails"):
        step(TailTable(1, BLOCK), (0, 5, [1]), (0, 5, [2]))


def test_a_block_that_is_given_away_frees_the_tail_of_its_last_owner():
    table = TailTable(2, BLOCK)
    (first,) = step(table, (0, 5, [1]))
    (second,) = step(table, (0, 7, [1]))
    assert first != second
    assert step(table, (7, 8, [1]), (0, 3, [2])) == [second, first]


def test_full_pages_need_no_tail_afterwards():
    table = TailTable(1, BLOCK)
    assert step(table, (0, 64, [1])) == [0]
    assert step(table, (0, 32, [2])) == [0]
    assert step(table, (32, 32, [2]), (64, 65, [1, 3])) == [0, 0]
