"""Ask our trainer for the losses of a partner's params. The wait for the answer is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.errors import TrainerDied
from peer.exchange.pair.offer import PartnerOffer
from peer.ports.trainer import ProbeTerms, Trainer
from peer.protocol.pair.probe_verdict import LEAST_WINDOWS, ProbeVerdict, judge

WITHIN_STEPS, WITHIN_S = 4.0, 5.0
"""Inner steps, and seconds besides, that the trainer may take for a probe: twice what its share of windows costs."""
BESIDES_STEPS, BESIDES_S = 2.0, 10.0
"""For the step under way when we ask, and for the params' way to the trainer."""


class ParamsCheck:
    """Judges params by their loss. `secret` draws 64 bits, from which the windows follow."""

    def __init__(self, trainer: Trainer, secret: Callable[[], int]) -> None:
        self._trainer = trainer
        self._secret = secret

    async def judge(self, offer: PartnerOffer, taken: float) -> ProbeVerdict | str:
        """Return the verdict on the mean of our params and the partner's, of which this part of the way is gone; or why
        there is none. Never raises for the trainer: what it is asked next shows that it died."""
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
