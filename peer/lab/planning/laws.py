"""Scaling laws of DiLoCo: loss, inner learning rate and batch as powers of parameters and peers.

They are the joint fits of arXiv 2503.09799, A * N^a * M^b for N parameters and M peers, and its best outer learning
rates. The paper trained on C4 with a vocabulary of 32,768 tokens, windows of 2,048, 20 tokens per parameter, and 30
inner steps between two exchanges. Each function reports which of its arguments are outside that range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from peer.run.worth import LAW, LAW_PARAMS, LAW_PEERS, LOSS_BY_PEERS, TOKENS_A_PARAMETER

PAPER, PARAMS, PEERS = LAW, LAW_PARAMS, LAW_PEERS
VOCABULARY = 32_768
"""Vocabulary size of the paper's tokenizer. A loss in nats per token is valid for that tokenizer only: a token of bytes
carries less information than one of words."""
WINDOW = 2048
"""Tokens of a sequence. The law for batches counts sequences."""
EVERY = 30
"""Inner steps between two exchanges in the paper's runs."""
EVERY_SWEPT = 300
"""The largest number of inner steps between two exchanges that the paper tried."""
SIZES = f"{PARAMS[0] / 1e6:g} M to {PARAMS[1] / 1e9:g} B"
RANGE = f"{SIZES} parameters, {PEERS[0]} to {PEERS[1]} peers"
OUTER_LR = {1: 0.4, 2: 0.6, 4: 0.6, 8: 0.8}
"""Number of peers -> best outer learning rate, with Nesterov momentum 0.9. It does not depend on the parameters."""
OUTER_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Derived:
    """A number or choice of a plan, with its source."""

    value: Any
    reason: str
    """The source and its range, as a sentence for people."""
    outside: tuple[str, ...] = ()
    """Arguments outside the source's range, as sentences. Empty: none."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """The power law A * N^a * M^b, for N parameters and M peers."""

    scale: float
    by_params: float
    by_peers: float

    def at(self, params: float, peers: float) -> float:
        """Return the value of the law."""
        return self.scale * math.exp(self.by_params * math.log(params) + self.by_peers * math.log(peers))

    def __str__(self) -> str:
        return f"{self.scale:g} N^{self.by_params:g} M^{self.by_peers:g}"


LOSS = PowerLaw(19.226, -0.0985, LOSS_BY_PEERS)
"""Final loss in nats per token."""
INNER_LR = PowerLaw(22256.0, -0.8827, 0.2929)
BATCH = PowerLaw(0.00709, 0.4695, 0.3399)
"""Sequences of WINDOW tokens per inner step, of all peers together. The paper says tokens, but only sequences agree
with the optima in its figures."""


def expected_loss(params: float, peers: int, tokens: float, every: int) -> Derived:
    """Return the final loss in nats per token. The formula does not use `tokens` and `every` (inner steps between
    exchanges); they are only compared with the paper's range."""
    outside = [*_outside(params, peers)]
    if params > PARAMS[1]:
        outside.append("at 4 B and 10 B parameters the paper measured 1 and 4 % more than this law gives")
    ratio = tokens / params
    if not 0.75 * TOKENS_A_PARAMETER <= ratio <= 1.25 * TOKENS_A_PARAMETER:
        outside.append(f"{ratio:.3g} tokens a parameter: the law has {TOKENS_A_PARAMETER:g}")
    if every != EVERY:
        swept = "the loss grew slowly up to" if every <= EVERY_SWEPT else "the paper went no further than"
        outside.append(f"{every} inner steps: the law has {EVERY}, and {swept} {EVERY_SWEPT}")
    reason = f"{LOSS} ({PAPER}; {RANGE}), nats a token of C4: another text or tokenizer has another loss"
    return Derived(LOSS.at(params, peers), reason, tuple(outside))


def inner_lr(params: float, peers: int) -> Derived:
    """Return the inner learning rate. Outside the law's range (smaller models, more peers) it is that of the range's
    edge, because the extrapolated power would soon make a run diverge."""
    held = max(params, PARAMS[0]), min(peers, PEERS[1])
    kept = ", held at the edge of the range" if held != (params, peers) else ""
    return Derived(INNER_LR.at(*held), f"{INNER_LR} ({PAPER}; {RANGE}){kept}", _outside(params, peers))


def batch_tokens(params: float, peers: int) -> Derived:
    """Return the tokens per inner step, of all peers together."""
    reason = f"{BATCH} sequences of {WINDOW} tokens of all peers together ({PAPER}; {RANGE})"
    return Derived(BATCH.at(params, peers) * WINDOW, reason, _outside(params, peers))


def outer_lr(peers: int) -> Derived:
    """Return Nesterov's outer learning rate: that of the nearest number of peers in the paper."""
    nearest = min(OUTER_LR, key=lambda known: (abs(math.log2(peers / known)), known))
    told = ", ".join(f"{rate:g} for {known}" for known, rate in OUTER_LR.items())
    reason = f"the best of {PAPER}: {told} peers, for any size. Momentum {OUTER_MOMENTUM:g}"
    return Derived(OUTER_LR[nearest], reason, _outside_peers(peers))


def _outside(params: float, peers: int) -> tuple[str, ...]:
    if PARAMS[0] <= params <= PARAMS[1]:
        return _outside_peers(peers)
    return (f"{params:,.0f} parameters: the law has {SIZES}", *_outside_peers(peers))


def _outside_peers(peers: int) -> tuple[str, ...]:
    inside = PEERS[0] <= peers <= PEERS[1]
    return () if inside else (f"{peers} peers: the law has {PEERS[0]} to {PEERS[1]}",)
