"""Estimates the worth of joining a run: how many machines that train alone its peers are worth together.

The worth is the number of tokens that one machine alone needs to reach the swarm's loss, divided by the tokens of each
peer (`peer compare --worth`). It was measured for models of the size of the built-in one (docs/results/does-it-pay.md
and pairs-at-scale.md). For the sizes of arXiv 2503.09799 it follows from two published laws. For all other sizes it is
not known."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.methods.method import Method

LAW, TOKENS_LAW = "arXiv 2503.09799", "arXiv 2404.10102"
LOSS_BY_PEERS = 0.0116
"""Exponent in LAW: M peers that share the tokens reach M ** LOSS_BY_PEERS times the loss of one peer with all
tokens."""
LAW_PARAMS, LAW_PEERS = (35e6, 2.4e9), (1, 8)
"""Range of parameters and of peers in LAW."""
TOKENS_A_PARAMETER = 20.0
"""Tokens of all peers together, per parameter, in LAW."""
FLOOR, BY_PARAMS, BY_TOKENS = 1.8172, (482.01, 0.3478), (2085.43, 0.3658)
"""E, (A, alpha) and (B, beta) of the loss E + A / N^alpha + B / D^beta, in nats per token (TOKENS_LAW, table 1)."""
MEASURED_PARAMS = (1e5, 5e5)
"""Range of sizes for which the measurement of the built-in model (217,664 parameters) is shown."""


@dataclass(frozen=True, slots=True)
class ExpectedWorth:
    """The worth of a number of peers together."""

    machines: float | None
    """Machines that train alone. None: not known."""
    reason: str
    """Source of the number, or why there is none, for a person."""


def by_law(parameters: int, peers: int) -> float:
    """Return the worth of a group of `peers` peers for a model of this size with 20 tokens per parameter.

    The group's loss is M^0.0116 times that of one machine with all tokens. The second law gives the smaller number of
    tokens after which one machine has that loss."""
    tokens = TOKENS_A_PARAMETER * parameters
    scale, power = BY_TOKENS
    of_tokens = scale / math.exp(power * math.log(tokens))
    alone = FLOOR + BY_PARAMS[0] / math.exp(BY_PARAMS[1] * math.log(parameters)) + of_tokens
    above = alone * (math.exp(LOSS_BY_PEERS * math.log(peers)) - 1)
    return peers * math.exp(-math.log1p(above / of_tokens) / power)


@dataclass(frozen=True, slots=True)
class MeasuredWorth:
    """The worth of a swarm's peers at the end of a run, measured with the built-in model."""

    machines: float
    half_width: float
    """Half of the 95 % confidence interval over the seeds."""
    steps: int
    """Inner steps per peer."""
    parameters: int = 217_664
    page: str = "does-it-pay"
    """The page of the study, for `peer help`."""
    note: str = ""
    """A difference from the preset or from other entries, for a person. Empty: none."""


SCALE = "pairs-at-scale"
MEASURED: dict[tuple[str, int], MeasuredWorth] = {
    ("pair", 4): MeasuredWorth(1.78, 0.27, 1600),
    ("pair", 8): MeasuredWorth(2.02, 0.63, 1600),
    ("group", 4): MeasuredWorth(2.11, 0.71, 1600),
    ("group", 8): MeasuredWorth(3.24, 1.53, 1600),
    ("pair", 16): MeasuredWorth(2.08, 0.46, 2000, 115_520, SCALE),
    ("pair", 64): MeasuredWorth(2.19, 0.46, 2000, 115_520, SCALE, "little more than 16 peers, as pairs stop gaining"),
    ("group", 16): MeasuredWorth(3.54, 0.46, 2000, 115_520, SCALE, "without outer momentum"),
}
"""By topology and peers, with 20 steps between two exchanges and each method's best learning rate.

4 and 8 peers: from results/worth/runs.jsonl, the presets gossip and diloco with the default batch of 4; one machine has
the batch that is best for it. 16 and 64: from results/pairs_at_scale/runs.jsonl, gossip and the mean of the group with
a batch of 2, which one machine has too."""


def expected_worth(parameters: int, method: Method, peers: int) -> ExpectedWorth:
    """Return the worth of `peers` peers of a run together, or why it is not known."""
    if not method.exchanges or peers == 1:
        return ExpectedWorth(1.0, "nobody exchanges: each is as far as one machine alone")
    size = f"{parameters:,} parameters"
    if MEASURED_PARAMS[0] <= parameters <= MEASURED_PARAMS[1]:
        found = MEASURED.get((method.topology, peers))
        if found is None:
            counts = sorted(count for topology, count in MEASURED if topology == method.topology)
            return ExpectedWorth(None, f"not measured with {peers} peers, only with {', '.join(map(str, counts))}")
        note = f", {found.note}" if found.note else ""
        return ExpectedWorth(
            found.machines,
            f"+- {found.half_width:.1f}{note}, measured with {found.parameters:,} parameters, {found.steps:,} inner "
            f"steps a peer and the best learning rate: peer help {found.page}",
        )
    if not LAW_PARAMS[0] <= parameters <= LAW_PARAMS[1]:
        return ExpectedWorth(
            None,
            f"not known for {size}: measured with 0.2 M, and published for {LAW_PARAMS[0] / 1e6:g} M to "
            f"{LAW_PARAMS[1] / 1e9:g} B",
        )
    if not peers <= LAW_PEERS[1]:
        return ExpectedWorth(None, f"not known for {peers} peers: {LAW} has up to {LAW_PEERS[1]}")
    group = by_law(parameters, peers)
    laws = f"{LAW} (M^{LOSS_BY_PEERS:g}) and of {TOKENS_LAW} over tokens"
    why = f"estimated from the losses of {laws}, for {TOKENS_A_PARAMETER:g} tokens a parameter"
    if method.paired:
        return ExpectedWorth(None, f"not known for pairs of this size; {peers} peers of a group: {group:.2g}, {why}")
    return ExpectedWorth(group, why)


def worth_sentence(parameters: int, method: Method) -> str:
    """Return the gain of joining for a volunteer. The later number of peers is not known, so that 4 are assumed."""
    few = expected_worth(parameters, method, 4)
    if few.machines is None or not method.exchanges:
        return few.reason
    return f"4 peers come as far as {few.machines:.2g} machines alone would ({few.reason})"
