"""Account of the data that was drawn for each fragment's work since its base."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.data_span import cursor_text, skips_text
from peer.protocol.sampling import Cursor
from peer.trainer.batches import Batch


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The place in the data that a checkpoint stores. Cursors are (epoch, place, window)."""

    digest: str
    """Digest of the data. The cursors are valid only for this data."""
    cursor: tuple[int, int, int]
    """Place of the next window."""
    begins: list[tuple[int, int, int]]
    """Per fragment, the place where the data of its work since the base begins."""
    skipped: list[tuple[int, int, int]]
    """Places at which shards were skipped since the earliest of `begins`."""

    @property
    def cursors(self) -> list[tuple[int, int, int]]:
        return [self.cursor, *self.begins]

    @property
    def base(self) -> Cursor:
        """The place of the latest base: all data before it is in an outer state or lost."""
        return max(Cursor(*begin) for begin in self.begins)


class DataAccount:
    """Tracks, per fragment, which span of the data the work since its base was drawn from."""

    def __init__(self, at: Cursor, begins: Sequence[Cursor], skipped: Sequence[Cursor] = ()) -> None:
        """`at`: place of the next batch. `begins`: per fragment, the place where the work since its base begins.
        `skipped`: places at which shards were skipped since the earliest of `begins`."""
        self._end = at
        self._begins = list(begins)
        self._skipped = list(skipped)
        self._taken: list[deque[tuple[int, Cursor]]] = [deque(maxlen=2) for _ in begins]
        """Per fragment, (token counter, cursor) of its last two snapshots."""

    @classmethod
    def resumed(cls, position: DataPosition) -> DataAccount:
        """Restore the account that a checkpoint stores."""
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
        """Record a snapshot at this token count. Return the span of the fragment's work as fields of `WorkDetails`."""
        self._taken[fragment].append((tokens, self._end))
        begin = self._begins[fragment]
        skipped = [skip for skip in self._skipped if skip >= begin]
        return {
            "data_from": cursor_text(begin),
            "data_to": cursor_text(self._end),
            "data_skipped": skips_text(skipped),
        }

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make the snapshot taken at this token count the fragment's base."""
        self._begins[fragment] = next(cursor for taken, cursor in reversed(self._taken[fragment]) if taken == tokens)
        first = min(self._begins)
        self._skipped = [skip for skip in self._skipped if skip >= first]


def _plain(cursors: Sequence[Cursor]) -> list[tuple[int, int, int]]:
    return [(cursor.epoch, cursor.place, cursor.window) for cursor in cursors]
