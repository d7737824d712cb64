"""Account of the data that each fragment's work since its base was drawn from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.data_span import cursor_text, skips_text
from peer.protocol.sampling import Cursor
from peer.trainer.batches import Batch


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Place in the data as a checkpoint keeps it."""

    digest: str
    """Name of the data. The rest means nothing for other data."""
    cursor: tuple[int, int, int]
    """Place of the next window."""
    begins: list[tuple[int, int, int]]
    """Per fragment: where the work since its base begins."""
    skipped: list[tuple[int, int, int]]
    """Shards that were passed over since the first of these."""

    @property
    def cursors(self) -> list[tuple[int, int, int]]:
        return [self.cursor, *self.begins]

    @property
    def base(self) -> Cursor:
        """Return where the work begins that is in no outer state yet."""
        return max(Cursor(*begin) for begin in self.begins)


class DataAccount:
    """Where each fragment's work began, and what was skipped since then."""

    def __init__(self, at: Cursor, begins: Sequence[Cursor], skipped: Sequence[Cursor] = ()) -> None:
        """`begins`: for each fragment, where the work since its base begins."""
        self._end = at
        self._begins = list(begins)
        self._skipped = list(skipped)
        self._taken: list[deque[tuple[int, Cursor]]] = [deque(maxlen=2) for _ in begins]
        """Per fragment: (the trainer's token count, cursor) of its last snapshots."""

    @classmethod
    def resumed(cls, position: DataPosition) -> DataAccount:
        """Continue from a save."""
        begins, skipped = ([Cursor(*one) for one in cursors] for cursors in (position.begins, position.skipped))
        return cls(Cursor(*position.cursor), begins, skipped)

    @property
    def fragments(self) -> int:
        return len(self._begins)

    def position(self, digest: str) -> DataPosition:
        return DataPosition(digest, _plain([self._end])[0], _plain(self._begins), _plain(self._skipped))

    def record_batch(self, batch: Batch) -> None:
        self._end = batch.end
        self._skipped += batch.skipped

    def snapshot(self, fragment: int, tokens: int) -> dict[str, str]:
        """Take a snapshot; return the span of the fragment's work, as the fields of a `WorkSnapshot`."""
        self._taken[fragment].append((tokens, self._end))
        begin = self._begins[fragment]
        skipped = [skip for skip in self._skipped if skip >= begin]
        return {
            "data_from": cursor_text(begin),
            "data_to": cursor_text(self._end),
            "data_skipped": skips_text(skipped),
        }

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make this snapshot the fragment's base."""
        self._begins[fragment] = next(cursor for taken, cursor in reversed(self._taken[fragment]) if taken == tokens)
        first = min(self._begins)
        self._skipped = [skip for skip in self._skipped if skip >= first]


def _plain(cursors: Sequence[Cursor]) -> list[tuple[int, int, int]]:
    return [(cursor.epoch, cursor.place, cursor.window) for cursor in cursors]
