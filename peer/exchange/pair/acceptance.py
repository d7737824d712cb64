"""Decides how far a partner's params may enter our outer step: they are clipped around our own params, and checked by
their loss.

On failure: if the check cannot be made, or takes too long, the params are only clipped, and the journal has the
reason."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from peer.aio.tasks import uninterrupted
from peer.aio.threads import Offload
from peer.exchange.pair.check import ParamsCheck
from peer.exchange.pair.clipping import distance, shorten
from peer.exchange.pair.offer import PartnerOffer
from peer.exchange.payloads import work_of
from peer.observe import events
from peer.observe.status.value import PartnerParamsStatus, RefusedParams
from peer.ports.memory_store import MemoryStore
from peer.protocol.messages import PeerId
from peer.protocol.pair.clip import Clip, ClipMemory
from peer.protocol.pair.probe_verdict import ProbeVerdict
from peer.protocol.pair.receipt import NOT_MEASURED, gain_bucket

CHECK, CLIP, FINITE = "check", "clip", "finite"
"""What a manifest may require of a partner's params: clip and check, clip alone, or neither."""


@dataclass(frozen=True, slots=True)
class PartnerJudgement:
    """Whether a partner's params may enter the outer step, and how good they were."""

    refused: str = ""
    """Why they may not enter the outer step; empty if they may."""
    gain: int = NOT_MEASURED
    """`gain_bucket` of the decrease in loss, in nats per token, from our own params to the mean with the partner's."""

    @property
    def accepted(self) -> bool:
        return not self.refused


class PartnerAcceptance:
    """Judges the params of each partner. Remembers how far partners usually are, which sets the radius of the clip."""

    def __init__(
        self,
        asked: str,
        check: ParamsCheck,
        offload: Offload,
        store: MemoryStore,
        blame: Callable[[PeerId, str], None],
        emit: Callable[[events.Event], None],
        unchecked: str = "",
    ) -> None:
        """`asked`: CHECK, CLIP or FINITE; empty means FINITE. `blame`: called with a partner whose params are worse
        than guessing, and the reason. `unchecked`: why this run cannot check params, so that they are only clipped;
        empty: it can check them."""
        self._asked = asked or FINITE
        self._checks = self._asked == CHECK and not unchecked
        self._unchecked = unchecked
        self._told = False
        """Whether the journal has the reason why params cannot be checked."""
        self._verdicts: Counter[str] = Counter()
        self._left_out = 0
        """Number of partners that were not checked although the run requires it."""
        self._last_refused: RefusedParams | None = None
        self._check = check
        self._offload = offload
        self._store = store
        self._blame = blame
        self._emit = emit
        self._memory = _read(store)

    async def judge(self, offer: PartnerOffer) -> PartnerJudgement:
        """Judge the partner's params, and clip them in place if they may enter the outer step.

        A cancelled call returns only when no thread writes to them any more."""
        if self._asked == FINITE:
            return PartnerJudgement()
        clip = await self._measure(offer)
        verdict = await self._checked(offer, clip)
        refused = verdict.reason if verdict is not None else ""
        self._journal(offer, clip, verdict)
        if not refused and (clip.taken < 1 or offer.their_outer.numel()):
            await uninterrupted(self._offload(lambda: _apply(offer, clip)))
        if verdict is not None and verdict.nonsense:
            self._blame(offer.peer, "the partner's params are worse than guessing")
        return PartnerJudgement(refused, gain_bucket(-verdict.lost) if verdict is not None else NOT_MEASURED)

    def report(self) -> PartnerParamsStatus:
        """Return the numbers of judged partners for `peer status`."""
        return PartnerParamsStatus(
            asked=self._asked,
            taken=self._verdicts["taken"],
            clipped=self._verdicts["clipped"],
            refused=self._verdicts["refused"],
            unchecked=self._left_out,
            why_unchecked=self._unchecked,
            last_refused=self._last_refused,
        )

    async def _measure(self, offer: PartnerOffer) -> Clip:
        own = work_of(offer.work.params, offer.outer, offer.share)
        lengths = await self._offload(lambda: (distance(own, offer.outer), distance(offer.theirs, own)))
        self._memory.ratio.observe(offer.tokens, offer.work.tokens)
        clip = self._memory.of(offer.work.key.fragment).clip(*lengths, self._memory.ratio.value)
        raw = json.dumps(self._memory.to_json()).encode()
        await self._offload(lambda: self._store.write(raw))
        return clip

    async def _checked(self, offer: PartnerOffer, clip: Clip) -> ProbeVerdict | None:
        if not self._checks:
            return None
        found = await self._check.judge(offer, clip.taken)
        self._unchecked, verdict = (found, None) if isinstance(found, str) else ("", found)
        return verdict

    def _journal(self, offer: PartnerOffer, clip: Clip, verdict: ProbeVerdict | None) -> None:
        refused = verdict is not None and not verdict.accepted
        name = "refused" if refused else "taken" if clip.taken == 1 else "clipped"
        reason = (verdict.reason if verdict else "") or _reason(clip)
        self._verdicts[name] += 1
        self._left_out += verdict is None and self._asked == CHECK
        if refused:
            self._last_refused = RefusedParams(offer.peer, offer.work.key.round, reason)
        unchecked = "" if self._told else self._unchecked
        self._told = not self._checks
        self._emit(
            events.PartnerJudged(
                round=offer.work.key.round,
                fragment=offer.work.key.fragment,
                peer=offer.peer,
                verdict=name,
                reason=reason,
                work=clip.work,
                distance=clip.distance,
                radius=clip.radius,
                gained=verdict.gained if verdict else math.nan,
                lost=verdict.lost if verdict else math.nan,
                limit=verdict.limit if verdict else math.nan,
                windows=verdict.windows if verdict else "",
                unchecked=unchecked,
            )
        )


def _apply(offer: PartnerOffer, clip: Clip) -> None:
    """Clip the partner's params in place. Its outer_params, if sent, are clipped to the same radius around ours."""
    own = work_of(offer.work.params, offer.outer, offer.share)
    shorten(offer.theirs, own, clip.taken)
    if offer.their_outer.numel():
        away = distance(offer.their_outer, offer.outer)
        shorten(offer.their_outer, offer.outer, min(1.0, clip.radius / away) if away else 1.0)


def _reason(clip: Clip) -> str:
    if clip.taken == 1:
        return ""
    if clip.work == 0:
        return "we did no work that its distance could be measured by"
    return f"it is {clip.distance / clip.work:.3g} times our own work away, and {clip.radius / clip.work:.3g} are taken"


def _read(store: MemoryStore) -> ClipMemory:
    try:
        return ClipMemory.from_json(json.loads(store.read() or b"{}"))
    except (ValueError, RecursionError):
        return ClipMemory()  # the file is damaged: start without memory
