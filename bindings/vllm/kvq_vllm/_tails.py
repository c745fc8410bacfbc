"""Which tail belongs to which sequence.

A tail holds the FP16 numbers of a sequence's open page. vLLM's metadata does not name sequences, but the block that
holds an open page belongs to one sequence alone: vLLM shares full blocks only. So that block's number finds the tail.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

PAGE = 32
"""Tokens of a page."""


class LostTail(RuntimeError):
    """A sequence goes on in a page whose tail has been given to another sequence."""


class _Open(NamedTuple):
    tail: int
    length: int


class TailTable:
    """Tails of sequences whose newest page is not full, by the block that holds it.

    vLLM does not say when a sequence ends, so its tail stays taken until the block is written anew or no other tail is
    left: then the one that was used longest ago is taken. With twice as many tails as a batch has sequences, no
    sequence that is in every batch loses its own. A sequence that has lost its tail is found by its block and length.
    """

    def __init__(self, n_tails: int, block_tokens: int) -> None:
        self.n_tails = n_tails
        self.block_tokens = block_tokens
        self._free = list(range(n_tails))[::-1]
        self._open: OrderedDict[int, _Open] = OrderedDict()  # by block, used longest ago first

    def assign(self, starts: Sequence[int], lengths: Sequence[int], block_of: Callable[[int, int], int]) -> list[int]:
        """Tails of a batch's sequences for one step.

        :param starts: tokens of each sequence before the step.
        :param lengths: tokens of each sequence after it.
        :param block_of: number of a sequence's block, by the sequence's place in the batch and the block's in it.
        :returns: a tail for each sequence; 0 for those that get no tokens and have no open page, which need none.
        """
        tails = [0] * len(starts)
        begins = []
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if start % PAGE != 0:
                tails[row] = self._continued(start, block_of(row, start // self.block_tokens))
            elif length > start:
                begins.append(row)
        # After those that go on have theirs, which are then not in the way.
        for row in begins:
            tails[row] = self._taken()
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            if length % PAGE != 0:
                self._keep(block_of(row, length // self.block_tokens), _Open(tails[row], length))
            elif length > start:
                self._free.append(tails[row])
        return tails

    def _continued(self, start: int, block: int) -> int:
        found = self._open.pop(block, None)
        if found is None or found.length != start:
            raise LostTail(
                "a sequence of %d tokens has lost the tail of its page in block %d: it was not in a batch while others "
                "took all %d tails. Set KVQ_VLLM_TAILS to more." % (start, block, self.n_tails)
            )
        return found.tail

    def _taken(self) -> int:
        if self._free:
            return self._free.pop()
        if not self._open:
            raise LostTail("a batch has more sequences than the %d tails" % self.n_tails)
        _, oldest = self._open.popitem(last=False)
        return oldest.tail

    def _keep(self, block: int, entry: _Open) -> None:
        ended = self._open.pop(block, None)  # of a sequence whose block vLLM has given away since
        if ended is not None:
            self._free.append(ended.tail)
        self._open[block] = entry
