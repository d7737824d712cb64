"""Plans a run: method, step sizes, loss, bytes and days, each with its source.

Machine and link decide how often the peers can exchange; the scaling laws give learning rates and batch. Nothing is
started. The published laws are in `peer.lab.planning.laws`, the times in `peer.lab.planning.pace`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peer.errors import UsageError
from peer.lab.planning import laws
from peer.lab.planning.checks import between
from peer.lab.planning.laws import Derived
from peer.lab.planning.pace import FLOPS, LONGEST_DELAY, Pace, PlannedSwarm, pace_of
from peer.lab.planning.shape import settings_of, shape_for
from peer.lab.sim.links import Link
from peer.methods.cautions import cautions
from peer.methods.codec_specs import FORMS
from peer.methods.diloco import NESTEROV
from peer.methods.method import MAX_GROUP, Caution, Method
from peer.methods.registry import PRESETS
from peer.methods.sgd import CONTROL
from peer.run.load import bytes_a_day
from peer.run.resolve import method_findings, method_of, resolve
from peer.run.sections import LimitsSection, LlamaSection, SyncSection
from peer.run.worth import LAW_PARAMS, TOKENS_A_PARAMETER, expected_worth

DAY = 86_400.0
EVERY = (30, 50, 100, 200, 300, 500)
"""Numbers of inner steps between two exchanges that are tried. A smaller number would cost more bytes without a lower
loss."""
ALIKE = 1.5
"""Up to this ratio of the fastest to the slowest peer, a group waits little for its slowest member."""
ALONE = next(preset for preset in ("snoo", CONTROL) if preset in PRESETS)
"""The preset of a single peer: an outer step on its own work, if there is such a preset."""
LARGEST_GROUP = 256
"""Most peers of a group that a manifest may set."""
FRAGMENT_LAYERS = 3
GROUP_CODEC, PLAIN = "int4", ("fp32", "int4")
LONG_RUN = 150
"""Least number of exchanges for which the papers' outer momentum is right. It overshoots in shorter runs: see
docs/explanation/methods.md."""
MOST_WINDOWS, MOST_ROUNDS = 2**16, 10**9
"""Upper bounds of a manifest for `train.batch` and `train.total_rounds`."""
EVALUATIONS = 50
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-6, 2e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What an operator wants to train, and the machines and links for it."""

    params: float
    tokens: float | None
    """Training tokens of all peers together. None: 20 per parameter, as in the laws."""
    peers: int
    link: Link
    flops: float
    """Floating point operations per second that training reaches on each machine."""
    flops_source: str = "given"
    speeds: float = 1.0
    """Speed of the fastest peer divided by that of the slowest."""
    scatter: float = 0.0
    share: float = 0.95
    """Least share of the time in which the machines should compute."""
    context: int = laws.WINDOW
    vocab: int = 256
    preset: str | None = None
    """None: the planner chooses."""

    def __post_init__(self) -> None:
        between("--peers", self.peers, 1, 100_000)
        between("--machine", self.flops, 1e6, 1e18)
        between("--speeds", self.speeds, 1, 1000)
        between("--scatter", self.scatter, 0, 2)
        between("--share", self.share, 0.01, 0.999)
        between("--context", self.context, 8, 2**20)
        if self.tokens is not None:
            between("--tokens", self.tokens, 1, 1e18)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A plan. The keys and order of `numbers` are those of `--json`."""

    numbers: dict[str, Derived]
    asides: dict[str, Derived]
    """Facts from which the numbers follow."""
    settings: tuple[str, ...]
    """The plan as `key=value` settings of a manifest."""
    cautions: tuple[Caution, ...]
    """Warnings to read before starting a run with this manifest."""

    def to_json(self) -> dict[str, Any]:
        return {name: derived.value for name, derived in self.numbers.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """The candidate presets and the round clock, before the frequency of exchanges is known."""

    presets: tuple[str, ...]
    """Presets to try, the one that learns most per token first."""
    why: str
    clock: str
    why_clock: str


@dataclass(frozen=True, slots=True)
class _Choice:
    """A method and frequency that was tried, and its pace."""

    sync: SyncSection
    method: Method
    pace: Pace
    why: str


def plan(intent: Intent) -> TrainingPlan:
    """Make a plan. Raises UsageError for impossible values, ManifestError if the planned method is not valid."""
    model = shape_for(intent.params, intent.vocab, intent.context)
    tokens = intent.tokens or TOKENS_A_PARAMETER * model.parameters
    batch = _batch(intent, model)
    step_seconds = _step_seconds(intent, model, batch.value)
    steps = max(1, round(tokens / (intent.peers * batch.value * intent.context)))
    swarm = PlannedSwarm(intent.peers, intent.link, step_seconds, intent.scatter)
    place = _place(intent)
    choice = _choose(intent, model, place, swarm, steps)
    every, share = choice.pace.every, choice.pace.share
    rounds = min(MOST_ROUNDS, max(1, math.ceil(steps / every)) * choice.method.fragments)
    numbers = {
        "preset": Derived(choice.sync.preset, place.why),
        "sync_every": Derived(every, f"inner steps: {choice.why}", _steps_outside(every)),
        "fragments": _fragments(choice, model),
        "codec": _codec(choice.method),
        "inner_lr": laws.inner_lr(model.parameters, intent.peers),
        "batch": batch,
        "outer_lr": _outer_lr(choice, intent.peers, steps),
        "expected_loss": _loss(intent, model, tokens, choice),
        "worth": _worth(intent, model, tokens, choice),
        "bytes_per_day": Derived(
            bytes_a_day(choice.method, choice.pace.sync_bytes, choice.pace.seconds(swarm)),
            "each way and peer on the line, estimated: payload, headers and control traffic",
        ),
        "compute_share": _share(intent, choice),
        "days": Derived(steps * step_seconds / share / DAY, f"{steps:,} inner steps of {step_seconds:.3g} s"),
    }
    asides = {
        "model": Derived(
            f"{model.parameters:,}",
            f"parameters: {model.num_hidden_layers} layers, {model.hidden_size} wide, inner {model.intermediate_size}, "
            f"vocabulary {model.vocab_size:,}. Depth as in arXiv 2501.18512",
        ),
        "tokens": Derived(f"{tokens:,.0f}", "given" if intent.tokens else "20 a parameter, as the laws have it"),
        "machine": Derived(f"{intent.flops / 1e9:,.1f} Gflop/s", intent.flops_source),
        "link": Derived(intent.link.name, f"{8 * swarm.payload_rate / 1e6:.4g} Mbit/s of payload each way at once"),
        "clock": Derived(place.clock, place.why_clock),
        "rounds": Derived(rounds, f"{math.ceil(steps / every)} exchanges of each fragment"),
    }
    settings = [*_settings(intent, model, choice), *_run_settings(numbers, rounds)]
    return TrainingPlan(numbers, asides, tuple(settings), tuple(cautions(choice.method, rounds)))


def _step_seconds(intent: Intent, model: LlamaSection, windows: int) -> float:
    """Return the seconds of an inner step. Raises UsageError if a manifest cannot express it."""
    seconds = FLOPS * model.parameters * windows * intent.context / intent.flops
    if not SHORTEST_STEP_S <= seconds <= LONGEST_STEP_S:
        raise UsageError(
            f"an inner step of {windows} windows would take {seconds:.3g} s on such a machine",
            f"Change --params, --context or --machine until it takes {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:g} s.",
        )
    return seconds


# -- the method --------------------------------------------------------------------------------------------------------


def _place(intent: Intent) -> _Place:
    alike = intent.speeds <= ALIKE
    clock = "steps" if alike else "seconds"
    why_clock = (
        "machines of like speed: a round is a number of inner steps"
        if alike
        else f"speeds differ by {intent.speeds:g}: each machine does the steps it can in a round of so many seconds"
    )
    if intent.preset is not None:
        if PRESETS[intent.preset].method.one_state:
            between("--peers", intent.peers, 1, LARGEST_GROUP)
        return _Place((intent.preset,), "given", clock, why_clock)
    if intent.peers == 1:
        return _Place((ALONE,), "one peer has nobody to exchange with", clock, why_clock)
    if alike and intent.peers <= MAX_GROUP:
        why = f"at most {MAX_GROUP} peers of like speed: a group learns more from a token (peer help methods)"
        return _Place(("diloco", "streaming-diloco"), why, clock, why_clock)
    many = f"more than {MAX_GROUP} peers" if intent.peers > MAX_GROUP else f"speeds that differ by {intent.speeds:g}"
    why = f"{many}: in pairs nobody waits for more than one other (arXiv 2506.10911)"
    return _Place(("gossip", "streaming-noloco"), why, clock, why_clock)


def _choose(intent: Intent, model: LlamaSection, place: _Place, swarm: PlannedSwarm, steps: int) -> _Choice:
    """Return the method with the most frequent exchange that still leaves the wanted share of computing time. If none
    does, the one with the largest share."""
    tried = []
    for every in EVERY:
        for preset in place.presets:
            sync = _sync(model, place, preset, every, swarm, steps)
            method = method_of(sync)
            tried.append(_Choice(sync, method, pace_of(model, method, every, swarm), ""))
    enough = (one for one in tried if one.pace.share >= intent.share and one.pace.in_time)
    chosen = next(enough, None)
    if chosen is None:
        chosen = max(tried, key=lambda one: (one.pace.in_time, one.pace.share))
        why = f"nothing that was tried computes {intent.share:.0%} of the time with results in time, this is the most"
    else:
        why = f"the most frequent of {', '.join(map(str, EVERY))} that computes {intent.share:.0%} of the time"
    final = _sync(model, place, chosen.sync.preset, chosen.pace.every, swarm, steps, chosen.pace.delay)
    return _Choice(final, resolve(final), chosen.pace, why)


def _sync(
    model: LlamaSection,
    place: _Place,
    preset: str,
    every: int,
    swarm: PlannedSwarm,
    steps: int,
    delay: int | None = None,
) -> SyncSection:
    """Return the [sync] section of a manifest. `delay`: inner steps until a result merges. None: the preset's."""
    seconds = place.clock == "seconds"
    unit = swarm.step_seconds if seconds else 1
    length = max(1.0, round(every * unit, 1)) if seconds else every
    given: dict[str, Any] = {"preset": preset, "clock": place.clock, "sync_every": length}
    method = method_of(SyncSection(**given))
    if method.one_state:
        if method.codec in PLAIN:  # a preset with another codec exists because of that codec, so leave it
            given["codec"] = GROUP_CODEC
        if swarm.peers > method.max_group:
            given["max_group"] = swarm.peers
    if method.outer_rule is NESTEROV and steps >= LONG_RUN * every:
        given |= {"outer_lr": laws.outer_lr(swarm.peers).value, "outer_momentum": laws.OUTER_MOMENTUM}
    if method.schedule == "streaming":
        given["fragments"] = _fitting(given, _papers(model))
        if delay is not None and not method.eager:
            given["fragment_sync_delay"] = round(delay * unit, 1) if seconds else delay
    return SyncSection(**given)


def _fitting(given: dict[str, Any], wanted: int) -> int:
    """Return the largest number of fragments, at most `wanted`, into which sync_every can be divided."""
    for count in range(wanted, 1, -1):
        findings = method_findings(SyncSection(**given, fragments=count))
        if not any(finding.where[-1] == "sync_every" for finding in findings):
            return count
    return 1


def _papers(model: LlamaSection) -> int:
    """Return the number of fragments as in the paper (arXiv 2501.18512): three layers each, and one for embedding and
    head."""
    return max(2, model.num_hidden_layers // FRAGMENT_LAYERS + 1)


# -- its numbers -------------------------------------------------------------------------------------------------------


def _batch(intent: Intent, model: LlamaSection) -> Derived:
    law = laws.batch_tokens(model.parameters, intent.peers)
    windows = min(MOST_WINDOWS, max(1, round(law.value / (intent.peers * intent.context))))
    told = f"windows of {intent.context:,} tokens a peer and inner step: {law.value:,.0f} tokens, from {law.reason}"
    outside = list(law.outside)
    if windows * intent.peers * intent.context > 1.5 * law.value:
        outside.append(
            f"one window a peer is {windows * intent.peers * intent.context / law.value:.2g} times the law's"
        )
    return Derived(windows, told, tuple(outside))


def _steps_outside(every: int) -> tuple[str, ...]:
    return () if every <= laws.EVERY_SWEPT else (f"{every} inner steps: {laws.PAPER} tried up to {laws.EVERY_SWEPT}",)


def _fragments(choice: _Choice, model: LlamaSection) -> Derived:
    count, wanted = choice.method.fragments, _papers(model)
    if choice.method.schedule == "full":
        return Derived(count, "the full model at once, and the trainer waits")
    told = f"{FRAGMENT_LAYERS} layers each, and one for embedding and head (arXiv 2501.18512), are {wanted}"
    if count != wanted:
        told += f". {count} is the most up to that into which sync_every can be cut"
    if not choice.method.fragments_apart:
        told += ". Fewer than 3 leave none for embedding and head alone"
    told += ". Merged a period later" if choice.method.eager else f". Merged {choice.pace.delay} steps later"
    late = f"an exchange takes more than {LONGEST_DELAY:.0%} of sync_every"
    return Derived(count, told, (), () if choice.pace.in_time else (late,))


def _codec(method: Method) -> Derived:
    if not method.exchanges:
        return Derived(method.codec, "nothing crosses the wire")
    bits = FORMS[method.codec].bits
    if method.codec.startswith("modulo"):
        return Derived(method.codec, f"{bits:g} bits: the partner knows the high bits of params by its own")
    if method.paired:
        return Derived(method.codec, f"{bits:g} bits: params cross, whose small differences fewer bits round away")
    back = f"{bits:g} bits, back in {method.result_codec}"
    if method.codec != GROUP_CODEC:
        return Derived(method.codec, f"{back}: the preset's")
    return Derived(method.codec, f"{back}: 4 bits cost no loss up to 4 B parameters (arXiv 2501.18512, section 3.3.3)")


def _outer_lr(choice: _Choice, peers: int, steps: int) -> Derived:
    method, exchanges = choice.method, steps / choice.pace.every
    if choice.sync.outer_lr is not None:
        return laws.outer_lr(peers)
    told = f"the preset's, with momentum {method.outer_momentum:g}"
    if method.outer_rule is not NESTEROV:
        return Derived(method.outer_lr, told)
    paper = laws.outer_lr(peers)
    return Derived(
        method.outer_lr,
        f"{told}. {paper.value:g} with {laws.OUTER_MOMENTUM:g} ({laws.PAPER}) is for runs of many exchanges",
        (f"{exchanges:.0f} exchanges of each fragment: the paper's runs have more than {LONG_RUN}",),
    )


def _loss(intent: Intent, model: LlamaSection, tokens: float, choice: _Choice) -> Derived:
    """Return the expected loss. None if the tokenizer is not the law's, because the number would be far off."""
    if intent.vocab != laws.VOCABULARY:
        why = f"no law for a tokenizer of {intent.vocab:,} tokens: that of {laws.PAPER} has C4 and {laws.VOCABULARY:,}"
        return Derived(None, why)
    law = laws.expected_loss(model.parameters, intent.peers, tokens, choice.pace.every)
    outside = list(law.outside)
    if choice.method.paired:
        outside.append("pairs: the law is for a group. NoLoCo (arXiv 2506.10911) reports pairs near it")
    alone = not choice.method.exchanges and intent.peers > 1
    return Derived(law.value, law.reason, tuple(outside), ("nobody exchanges: expect more",) if alone else ())


def _worth(intent: Intent, model: LlamaSection, tokens: float, choice: _Choice) -> Derived:
    """Return how many machines that train alone the swarm is worth. None: unknown for this size."""
    found = expected_worth(model.parameters, choice.method, intent.peers)
    ratio = tokens / model.parameters
    by_law = found.machines is not None and model.parameters >= LAW_PARAMS[0] and choice.method.exchanges
    far = by_law and not 0.75 * TOKENS_A_PARAMETER <= ratio <= 1.25 * TOKENS_A_PARAMETER
    outside = (f"{ratio:.3g} tokens a parameter: the law has {TOKENS_A_PARAMETER:g}",) if far else ()
    return Derived(found.machines, f"of {intent.peers} machines: {found.reason}", outside)


def _share(intent: Intent, choice: _Choice) -> Derived:
    method = choice.method
    if not method.exchanges:
        return Derived(1.0, "nobody waits")
    if method.schedule == "full":
        told = "computing over computing and the exchange, for which the trainer waits"
    else:
        told = "the simulator of arXiv 2501.18512, Table 4, layer by layer. A late result makes it wait there"
    if intent.scatter and method.clock == "steps":
        told += f". Waiting for others with steps that scatter by {intent.scatter:g} (arXiv 2506.10911, Figure 5B)"
    low = (f"less than the {intent.share:.0%} wanted",) if choice.pace.share < intent.share else ()
    return Derived(choice.pace.share, told, (), low)


# -- the manifest ------------------------------------------------------------------------------------------------------


def _settings(intent: Intent, model: LlamaSection, choice: _Choice) -> Iterator[str]:
    yield "name=planned"
    yield from settings_of(model)
    yield f"train.context={intent.context}"
    for name, value in choice.sync.model_dump(exclude_unset=True).items():
        yield f"sync.{name}={value}"
    largest = max(FORMS[codec].nbytes(model.parameters) for codec in ("fp32", choice.method.codec))
    if largest > LimitsSection().max_fragment_bytes:
        yield f"limits.max_fragment_bytes={largest}"


def _run_settings(numbers: dict[str, Derived], rounds: int) -> Iterator[str]:
    yield f"optimizer.lr={numbers['inner_lr'].value:.3g}"
    yield f"train.batch={numbers['batch'].value}"
    yield f"train.total_rounds={rounds}"
    yield f"train.eval_every={max(1, rounds // EVALUATIONS)}"
