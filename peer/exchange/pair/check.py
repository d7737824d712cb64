"""Judges a partner's params by losses that our trainer computes with them. The wait for the trainer is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.errors import TrainerDied
from peer.exchange.pair.offer import PartnerOffer
from peer.ports.trainer import ProbeTerms, Trainer
from peer.protocol.pair.probe_verdict import LEAST_WINDOWS, ProbeVerdict, judge

WITHIN_STEPS, WITHIN_S = 4.0, 5.0
"""Inner steps, plus seconds, that the trainer may take to probe params: twice the time that its share of windows
needs."""
BESIDES_STEPS, BESIDES_S = 2.0, 10.0
"""Further inner steps and seconds, for the step that is under way and for moving the params to the trainer."""


class ParamsCheck:
    """Judges params by their loss on windows of our own data. `secret`: draws the 64 bits that determine the windows,
    so that a partner cannot know them."""

    def __init__(self, trainer: Trainer, secret: Callable[[], int]) -> None:
        self._trainer = trainer
        self._secret = secret

    async def judge(self, offer: PartnerOffer, taken: float) -> ProbeVerdict | str:
        """Return the verdict on the mean of our params and the partner's, or the reason why there is none, as text.

        `taken`: the part of the way from our params to the partner's that clipping leaves, 0 to 1. Never raises for a
        failure of the trainer; its next call shows that it died."""
        work = offer.work
        step_s = work.seconds / max(work.steps, 1)
        within_s = WITHIN_STEPS * step_s + WITHIN_S
        terms = ProbeTerms(self._secret(), offer.share, taken, within_s)
        try:
            async with asyncio.timeout(within_s + BESIDES_STEPS * step_s + BESIDES_S):
                losses = await self._trainer.probe(work.key, offer.outer, offer.theirs, terms)
        except TimeoutError:
            return "the trainer did not answer in time"
        except TrainerDied as death:
            return f"the trainer ended: {death}"
        except OSError as error:
            return f"the params could not be handed to the trainer: {error.strerror}"
        if isinstance(losses, str):
            return losses
        return judge(losses) or f"{len(losses.own)} windows, or losses without a value, say nothing ({LEAST_WINDOWS})"
