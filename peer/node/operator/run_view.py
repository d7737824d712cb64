"""The view of a run on a node of its operator, from peers' summaries: what the run's page, its metrics and `peer
status` show.

Summaries are signed, but their numbers are claims. The view therefore shows medians, and never sums."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from peer.aio.threads import Offload
from peer.errors import HomeUnusable
from peer.node.operator.run_progress import RunActivity, RunProgress
from peer.observe.status.value import JoinOffer, RunViewStatus, ViewedAmendment, ViewedRun
from peer.ports.clock import Clock
from peer.ports.console import Say
from peer.protocol.messages import PeerId, RunId
from peer.protocol.pair.receipt import ReceiptBounds, ShownReceipt
from peer.protocol.pair.receipt_chain import Verify
from peer.protocol.policy.amendments import Amendment, describe_change
from peer.protocol.summary.book import DROPS, FORGED, HeldSummary, SummaryBook
from peer.protocol.summary.loss_history import LossHistory
from peer.protocol.summary.run_totals import line_of, note_losses, speed_of, totals_of
from peer.run.home import write_whole
from peer.run.manifest import Manifest
from peer.signed_summary import InvalidSummary, unseal_summary

TICK_S = 2.0
"""Seconds between two updates of the losses."""
KEEP_EVERY_S = 60.0
"""Seconds between two writes of the part that survives a restart."""
MAX_KEPT = 32 * 2**20
"""Bytes of the largest file that is read."""
SHOWN_AMENDMENTS = 64
NOTE = "Numbers are what peers say of themselves, signed. A key costs nothing, so nothing here is a sum of them."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a run that a node knows without its peers. Functions return values that may change."""

    run_id: RunId
    manifest: Manifest
    preset: str
    progress: RunProgress
    started: Callable[[], float]
    """Returns the start of round 0 in run time. 0: not known yet."""
    ended: Callable[[], bool]
    amendments: Callable[[int], list[Amendment]]
    """Returns the latest amendments, at most the given number."""
    ticket: str
    bounds: ReceiptBounds
    """Bounds of what receipts of swaps may claim."""
    activity: RunActivity
    """Counts the tokens that the peers process."""


class RunView:
    """Collects peers' summaries, and returns the view of the run. Owned by one task, whose `run` keeps it up to
    date."""

    def __init__(
        self,
        facts: RunFacts,
        clock: Clock,
        verify: Verify,
        listed: Callable[[PeerId], bool],
        kept: Path | None = None,
    ) -> None:
        """`verify`: checks signatures of receipts. `listed`: returns whether the directory may contain a record of this
        peer. `kept`: a file. None: nothing survives a restart."""
        self._facts = facts
        self._clock = clock
        self._verify = verify
        self._listed = listed
        self._kept = kept
        self._book = SummaryBook()
        self._losses = LossHistory()
        self._load()

    # -- summaries of peers --------------------------------------------------------------------------------------------

    def on_summary(self, caller: PeerId, block: str, raw: bytes) -> str:
        """Accept a summary from a caller in this address block. Return why it was dropped, one of `DROPS`, which is
        counted. Empty: it was accepted."""
        now = self._clock.now()
        if why := self._book.refusal_reason(caller, block, now):
            return why
        try:
            summary = unseal_summary(raw, self._facts.run_id)
            if summary.peer_id != caller:
                raise InvalidSummary("a summary of another peer")
            for one in summary.receipts:
                if not self._verify(one.statement.signer, one.statement.to_bytes(), one.signature):
                    raise InvalidSummary("a receipt that its partner did not sign")
        except InvalidSummary:
            return self._book.drop(FORGED)
        return self._book.take(summary, block, now, self._signers(summary.receipts))

    def _signers(self, receipts: Iterable[ShownReceipt]) -> set[PeerId]:
        """Return the partners whose receipts confirm a swap that is possible by the bounds."""
        bounds = self._facts.bounds
        bounds = replace(bounds, rounds=min(bounds.rounds, self._facts.progress.furthest() + 1))
        statements = [one.statement for one in receipts]
        return {one.signer for one in statements if one.opinion.accepted and not bounds.refusal_reason(one)}

    async def run(self, offload: Offload, say: Say) -> None:
        """Update the losses, drop peers that left, and write the file, until cancelled.

        A failure to write is reported once, and the view goes on in memory."""
        wrote, told = -math.inf, False
        while True:
            self.tick()
            if self._kept is not None and self._clock.now() - wrote >= KEEP_EVERY_S:
                wrote, raw = self._clock.now(), json.dumps(self._to_keep()).encode()
                try:
                    await offload(partial(write_whole, self._kept, raw))
                except HomeUnusable as error:
                    if not told:
                        say(f"the view of the run is lost with this process: {error.found}")
                    told = True
            await self._clock.sleep(TICK_S)

    def tick(self) -> None:
        """Update losses and activity, and drop peers that left."""
        now = self._clock.now()
        self._book.forget(now)
        note_losses(self._losses, live := self._live(now), self._facts.progress.furthest(), now)
        self._facts.activity.count_work(speed_of(live), now)

    def _live(self, now: float) -> list[HeldSummary]:
        """Return the summaries of peers that take part now."""
        return [one for one in self._book if not self._is_silent(one, now)]

    def _is_silent(self, one: HeldSummary, now: float) -> bool:
        return one.is_silent(now, listed=self._listed(one.summary.peer_id))

    def known_peers(self) -> set[PeerId]:
        """Return the peers for which partners in several address blocks signed receipts."""
        return self._book.known()

    # -- the view ------------------------------------------------------------------------------------------------------

    def report(self) -> RunViewStatus:
        """Return the view for `peer status`. A value is None only if it is not known."""
        facts, now = self._facts, self._clock.now()
        started, furthest = facts.started(), facts.progress.furthest()
        return RunViewStatus(
            run=ViewedRun(
                name=facts.manifest.name,
                run_id=facts.run_id.hex(),
                preset=facts.preset,
                parameters=facts.manifest.model.parameters,
                started=started or None,
                total_rounds=facts.manifest.rounds,
                ended=facts.ended(),
            ),
            round=facts.progress.value,
            peers=tuple(
                line_of(
                    one.summary,
                    "silent" if self._is_silent(one, now) else one.summary.status.value,
                    min(one.summary.round, furthest),
                    now - one.heard_at,
                )
                for one in self._book.in_turn()
            ),
            totals=totals_of(self._live(now)),
            loss=self._losses.report(),
            amendments=tuple(
                ViewedAmendment(one.number, describe_change(one), one.round)
                for one in facts.amendments(SHOWN_AMENDMENTS)
            ),
            join=JoinOffer(facts.ticket),
            dropped={why: self._book.dropped[why] for why in DROPS},
            note=NOTE,
        )

    # -- across restarts -----------------------------------------------------------------------------------------------

    def _to_keep(self) -> dict[str, Any]:
        return {"losses": [astuple(point) for point in self._losses.points]}

    def _load(self) -> None:
        """Load what an earlier process stored. A file that cannot be read is ignored."""
        if self._kept is None:
            return
        try:
            with self._kept.open("rb") as file:
                found = json.loads(file.read(MAX_KEPT))
            self._losses.restore(found["losses"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
