"""The papers a daemon holds: kept in its run folder, asked of others, handed on to whoever asks. So the run's start
survives the operator's node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from peer.codes import Code
from peer.errors import BadPayload, HomeUnusable, ManifestError
from peer.membership.operators_word import ASK_TIMEOUT_S, OperatorsWord
from peer.observe import events
from peer.observe.formatting import local_time
from peer.observe.status.value import PapersStatus
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord
from peer.run.papers.paper import MAX_LINE, Paper
from peer.run.papers.shelf import MAX_HELD, PaperShelf, keep, load
from peer.run.papers.start import discard_former

SOON_S = 1.0
"""Between two questions while nobody has told when the run begins."""
SELDOM = 12.0
"""Later on a paper is asked for so much more seldom than an amendment."""


class PaperSync(OperatorsWord):
    """One daemon's."""

    def __init__(
        self,
        shelf: PaperShelf,
        path: Path | None,
        emit: Callable[[events.Event], None],
        *,
        wants_start: bool = False,
    ) -> None:
        """Reads what was kept (None: nothing is, in simulations). A kept file that does not check counts as far as it
        does. `wants_start`: the run begins when a paper says so."""
        super().__init__(lambda peer, code, why: emit(events.PaperRefused(peer=peer, code=code, reason=why)))
        self.shelf = shelf
        self._path = path
        self._emit = emit
        self._wants_start = wants_start
        self._new: list[Paper] = []
        self.start_taken_back = False
        """Whether a start that counted here went with the delegation of its signer."""
        try:
            if path is not None:
                load(path, shelf)
        except ManifestError as damaged:
            emit(events.PaperRefused(peer="", code=Code.KEPT, reason=damaged.found))

    @property
    def count(self) -> int:
        return self.shelf.taken

    def pace(self, every_s: float) -> float:
        """Seconds until the next question: soon while the run's start is wanted, else seldom."""
        return SOON_S if self.wanting else SELDOM * every_s

    @property
    def wanting(self) -> bool:
        """Whether the run begins when a paper says so, and none is held."""
        return self._wants_start and self.shelf.start is None

    def start(self) -> float:
        """When round 0 begins, as a paper says; 0: none does, or the manifest does."""
        return self.shelf.start_time if self._wants_start else 0.0

    def lacking(self, held: Sequence[bytes]) -> list[bytes]:
        """For one who asks: the papers it lacks, as lines."""
        return self.shelf.lacking(frozenset(held[:MAX_HELD]))

    def hold(self, papers: Sequence[Paper]) -> None:
        """Take checked papers of our own: signed here, or read from the operator's file."""
        before = self.count
        for paper in papers:
            self._add(PeerId(""), paper)
        self._new_since(before)

    def read(self, operators_file: Path) -> None:
        """Take what the operator put into the file beside the manifest. Raises ManifestError."""
        before = self.count
        try:
            self._new += load(operators_file, self.shelf)
        finally:
            self._new_since(before)

    async def _take(self, transport: Transport, record: PeerRecord) -> bool:
        given = await transport.fetch_papers(record, self.shelf.held(), ASK_TIMEOUT_S)
        for line in given[:MAX_HELD]:
            try:
                self._add(record.peer_id, self.shelf.open(line[: MAX_LINE + 1]))
            except BadPayload as bad:  # the next one may be good: programs of two ages know different kinds
                self._refuse(record.peer_id, bad.code, bad.reason)
        return False  # one answer holds all that a peer has

    def _add(self, giver: PeerId, paper: Paper) -> None:
        if why := self.shelf.disputes(paper):
            self._refuse(giver, Code.SECOND_START, why)
        if self.shelf.add(paper):
            self._new.append(paper)

    def _new_since(self, before: int) -> None:
        if self.count == before:
            return
        for paper in self._new:
            self._emit(events.PaperHeld(paper=paper.document.kind, by=paper.document.by, says=describe(paper)))
        self._new.clear()
        for paper in self.shelf.dropped:
            self.start_taken_back |= paper.document.kind == "start"
            said = f"{paper.document.by} may not sign this any more, by the operator's latest word: {describe(paper)}"
            self._emit(events.PaperRefused(peer="", code=Code.TAKEN_BACK, reason=said))
        self.shelf.dropped.clear()
        try:
            if self._path is not None:
                keep(self._path, self.shelf)
                if self.shelf.start is not None:
                    discard_former(self._path.parent)
        except HomeUnusable as error:  # it counts all the same; after a restart the others tell again
            self._emit(events.PaperRefused(peer="", code=Code.NOT_KEPT, reason=error.found))

    def report(self, now: float) -> PapersStatus:
        """For `peer status`. `now`: seconds since the epoch."""
        return PapersStatus(
            held=len(self.shelf.held()),
            refused=self.refused,
            start=self.shelf.start_time,
            delegated_to=tuple(sorted(self.shelf.nodes(now))),
        )


def describe(paper: Paper) -> str:
    """Describe a paper in a sentence."""
    document = paper.document
    if document.kind == "start":
        return f"round 0 begins at {local_time(document.start)}"
    if document.kind == "digest":
        return f"the state of round {document.round} is {document.digest[:16]}"
    return f"{document.node} may sign: {', '.join(document.may) or 'nothing'}"
