"""Steps: appends to all layers of some sequences that are kept together, or taken back."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Optional
from typing import Sequence as Many

from . import _native
from ._arrays import address_of, integers
from ._batches import Prepared
from ._errors import KvqArgumentError, KvqError, KvqStateError, failure
from ._handle import enter_alone, leave_alone
from ._library import Function
from ._sequence import Sequence

if TYPE_CHECKING:
    from ._cache import Cache


class Step:
    """Appends to all layers of some sequences, from ``Cache.step``: begins with a ``with`` statement and ends with it.

    The end of the statement keeps all tokens that were appended inside; an exception takes them back. ``commit`` and
    ``abort`` end the step before. A sequence that is closed inside leaves the step.
    """

    def __init__(self, cache: Cache, sequences: Many[Sequence], token_counts: Any) -> None:
        self._cache = cache
        self._sequences = tuple(sequences)
        self._counts = integers("token_counts", token_counts, len(sequences))
        self._prepared = Prepared(_native.kvq_step_batch)
        self._active = False

    @property
    def active(self) -> bool:
        """Whether the step has begun and not ended."""
        return self._active

    def __enter__(self) -> Step:
        if self._active:
            raise KvqStateError("the step has begun already")
        try:
            self._run(_native.kvq_step_begin, self._sequences, self._counts, True)
        except BaseException:  # of a hook, too, in spite of which the step has begun
            self._drop()
            raise
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if self._active and kind is None:
                self.commit()
        finally:
            self._drop()

    def __repr__(self) -> str:
        return "<libkvq.Step%s>" % ("" if self._active else " (not active)")

    def commit(self, token_counts: Any = None, kept: Any = None) -> None:
        """Keep the first tokens of each sequence, or any, and end the step. If this is refused, the step goes on.

        :param token_counts: tokens per sequence, from 0 on; None: all, of which layers must have received as many.
        :param kept: instead, a list for each sequence of the tokens to keep, counted from 0 in the order of appending,
            ascending: a path of a draft tree.
        """
        if not self._active:
            raise KvqStateError("the step is not active")
        slots = None
        if kept is not None:
            if token_counts is not None:
                raise KvqArgumentError("token_counts and kept are both given")
            lists = [list(each) for each in kept]
            token_counts = [len(each) for each in lists]
            slots = array("i", [slot for each in lists for slot in each] + [0])  # an address also if none is kept
        counts = integers("token_counts", token_counts, len(self._sequences))
        self._run(_native.kvq_step_commit, self._sequences, counts, False, slots)

    def abort(self) -> None:
        """Take all tokens back, and end the step; does nothing if it has ended."""
        if not self._active:
            return
        living = [one for one in self._sequences if not one.closed]
        if living:
            self._run(_native.kvq_step_abort, living, None, False)
        self._active = False

    def _drop(self) -> None:
        """Abort because of an exception, which says more than an error of aborting."""
        try:
            self.abort()
        except (KvqError, ValueError):  # ValueError: the cache is closed
            pass

    def _run(
        self,
        function: Function,
        sequences: Many[Sequence],
        counts: Optional["array[int]"],
        active: bool,
        kept: Optional["array[int]"] = None,
    ) -> None:
        """Make a call on these sequences, after which the step is active or not."""
        cache, prepared = self._cache, self._prepared
        entered = enter_alone(sequences)
        try:
            prepared.set_sequences(sequences)
            prepared.batch.token_counts = address_of(counts)
            prepared.batch.kept_slots = address_of(kept)
            with cache._shared() as pointer:
                status = function(pointer, prepared.batch_reference, prepared.error_reference)
            if status != 0:
                raise failure(status, prepared.error)
            self._active = active
        finally:
            leave_alone(entered)
            if cache._hooks is not None:
                cache._hooks.finish()
