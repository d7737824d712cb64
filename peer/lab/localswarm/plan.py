"""The plan of `peer swarm`: the parsed options, and the manifest derived from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peer.errors import DataError, UsageError, for_shell
from peer.lab.attack.liar import ensure_fits
from peer.lab.attack.lies import BACKDOOR, DONOR, ensure_kind
from peer.lab.run_sources import RunSources
from peer.lab.sim.fault_profiles import chaos_plan, parse_profile
from peer.lab.sim.faults import Fault
from peer.run.files.own_texts import survey
from peer.run.manifest import Manifest, derive, parse_manifest
from peer.run.resolve import resolve
from peer.trackers.feed import Tracker

DEFAULT_SETTINGS = ("sync.clock=steps", "sync.sync_every=20", "train.eval_every=10")
"""Settings of a swarm without a manifest. Its rounds count inner steps, so that it does the same work on any
machine."""
TIMED_SETTINGS = ("train.eval_every=10",)
"""Settings of a swarm with --minutes. Its rounds count seconds, so that they fill the time; rounds in inner steps would
be over earlier."""

UNTIMED_ROUND_S = 10.0
"""Assumed seconds of a round whose clock counts inner steps, for drawing a fault plan."""


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event for peer `number` (from 1), `at_s` seconds after the start of training. Also used for the `K@SPEED` of
    --throttle; `at_s` is then the speed."""

    number: int
    at_s: float

    @classmethod
    def parse(cls, text: str, what: str) -> TimedEvent:
        """Parse `K@SECONDS`. `what`: the option's name, for the message. Raises UsageError."""
        number, _, seconds = text.partition("@")
        try:
            parsed = cls(int(number), float(seconds))
        except ValueError:
            raise UsageError(f"--{what} {text!r} cannot be read", f"Write K@SECONDS, e.g. --{what} 2@30.") from None
        if parsed.number < 1 or not 0 <= parsed.at_s < 1e7:
            raise UsageError(f"--{what} {text!r}: peers count from 1, seconds from 0", f"E.g. --{what} 2@30.")
        return parsed

    def __str__(self) -> str:
        return f"{self.number}@{self.at_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """The kills, joins and faults of a swarm."""

    kills: tuple[TimedEvent, ...] = ()
    joins: tuple[TimedEvent, ...] = ()
    faults: tuple[Fault, ...] | None = None
    """None: no faults, and no relays between the peers. An empty plan still has relays, so that runs with and without
    faults compare."""

    @property
    def timed(self) -> list[tuple[str, TimedEvent]]:
        """Return (option, event) for every `--kill` and `--join`."""
        return [("kill", kill) for kill in self.kills] + [("join", join) for join in self.joins]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetups:
    """Settings of single peers, by their number from 1, and of all peers."""

    speeds: dict[int, float] = field(default_factory=dict)
    """Share of the time in which a peer's trainer may work."""
    data: dict[int, Path] = field(default_factory=dict)
    """Folder of each peer's own texts. Empty: the run brings its own data."""
    join_options: tuple[str, ...] = ()
    """Further options of `peer join` for every peer, such as caps."""
    attacks: dict[int, str] = field(default_factory=dict)
    """Kind of attack of each lying peer (`peer.lab.attack`)."""
    sybil_records: int = 0
    """Number of records of fresh keys that are announced (`peer.lab.attack.sybil_records`)."""
    trackers: tuple[Tracker, ...] = ()
    """Trackers that log every peer's metrics, each peer into a file or folder of its own below the tracker's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmPlan:
    """All parsed settings of one `peer swarm`."""

    peers: int
    manifest: str
    """TOML text with the overrides applied. The swarm signs it with a key of its own."""
    sources: RunSources = field(default_factory=RunSources)
    """The files that the manifest names."""
    home: Path
    seed: int
    minutes: float | None = None
    """Minutes after which the peers leave. None: at the end of the run."""
    state: Path | None = None
    """The checkpoint folder that holds the first state named by the manifest. None: found beside the manifest, or made
    from the seed."""
    churn: Churn = Churn()
    setups: PeerSetups = field(default_factory=PeerSetups)


def parse_timed(texts: Iterable[str], option: str) -> tuple[TimedEvent, ...]:
    """Parse every `K@SECONDS` of an option. Raises UsageError."""
    return tuple(TimedEvent.parse(text, option) for text in texts)


def peer_setups(
    kind: str,
    peers: int,
    joins: Iterable[TimedEvent],
    throttles: Iterable[TimedEvent],
    data: tuple[str, ...],
    step_seconds: float,
    attacks: dict[int, str] | None = None,
    sybil_records: int = 0,
) -> PeerSetups:
    """Return the settings of the first peers and of those that join. kind: of the run's data. step_seconds: least
    duration of an inner step; 0: no limit. attacks: kinds of the lying peers. sybil_records: number of records to
    announce.

    Raises UsageError or DataError as `data_folders` does."""
    numbers = {*range(1, peers + 1), *(join.number for join in joins)}
    return PeerSetups(
        speeds={throttle.number: throttle.at_s for throttle in throttles},
        data=data_folders(data, kind, numbers),
        join_options=("--step-seconds", repr(step_seconds)) if step_seconds else (),
        attacks=attacks or {},
        sybil_records=sybil_records,
    )


def attacks_of(texts: Iterable[str], manifest: Manifest, peers: int, *, chaos: bool) -> dict[int, str]:
    """Parse every `K@KIND` of --attack: peer number -> kind. Raises UsageError."""
    found: dict[int, str] = {}
    for text in texts:
        number, at, kind = text.partition("@")
        if not at or not number.isdecimal():
            raise UsageError(f"--attack {text!r} cannot be read", "Write K@KIND, e.g. --attack 2@negate.")
        if not 1 <= int(number) <= peers:
            reason = f"--attack {text!r} names no peer that begins: they count from 1 to {peers}"
            raise UsageError(reason, "Choose one of them for K@KIND, or raise --peers.")
        if int(number) in found:
            raise UsageError(f"peer {number} would tell two lies", "Give a peer one --attack.")
        if ensure_kind(kind) == BACKDOOR:
            fix = f"Play it with: peer simulate --attack {BACKDOOR} --trainer tiny."
            raise UsageError("the real trainer learns nothing but the run's targets", fix)
        ensure_fits(kind, resolve(manifest.sync))
        found[int(number)] = kind
    if found and chaos:
        raise UsageError("--attack and --chaos exclude each other", "Give one of them.")
    if len(found) == peers:
        raise UsageError("every peer lies", "Leave at least one honest.")
    return found


def drawn_faults(profile: str, manifest: Manifest, peers: int, minutes: float | None) -> tuple[Fault, ...]:
    """Draw the fault plan from the manifest's seed. Raises UsageError."""
    duration_s = longest_s(manifest, minutes)
    if duration_s == math.inf:
        raise UsageError("--chaos needs the length of the run", "Add --minutes, or --set sync.clock=seconds.")
    round_s = manifest.sync.sync_every if resolve(manifest.sync).clock == "seconds" else UNTIMED_ROUND_S
    faults = chaos_plan(parse_profile(profile), manifest.seed, peers, duration_s, round_s)
    if not faults:
        reason = f"no fault of {profile} fits into {duration_s:g} s with rounds of {round_s:g} s"
        raise UsageError(reason, "Give more --rounds or --minutes, or more faults, e.g. all@20s.")
    return faults


def longest_s(manifest: Manifest, minutes: float | None) -> float:
    """Return the longest time that the swarm trains, in seconds. Infinite: rounds in inner steps, and no --minutes."""
    method = resolve(manifest.sync)
    run_s = manifest.train.total_rounds * method.round_length if method.clock == "seconds" else math.inf
    return min(run_s, math.inf if minutes is None else 60 * minutes)


def ensure_possible(
    churn: Churn, speeds: Iterable[TimedEvent], attacks: Mapping[int, str], peers: int, seconds: float
) -> None:
    """Raise UsageError for a kill, join, throttle or attack that this swarm could never carry out.

    speeds: the `K@SPEED` of --throttle. seconds: the longest time that the swarm trains."""
    if DONOR in attacks.values() and not churn.joins:
        raise UsageError(f"--attack K@{DONOR} lies to joiners, and nobody joins", "Add e.g. --join K@30.")
    in_order = sorted((join.at_s, join.number) for join in churn.joins if join.number > peers)
    newcomers = list(dict.fromkeys(number for _, number in in_order))
    if newcomers != list(range(peers + 1, peers + 1 + len(newcomers))):
        reason = f"--join names the newcomers {', '.join(map(str, newcomers))}, in this order, of a swarm of {peers}"
        raise UsageError(reason, f"Newcomers count on from {peers + 1}, in the order in which they join.")
    timed_orders = [(f"--kill {kill}", kill) for kill in churn.kills] + [
        (f"--join {join}", join) for join in churn.joins
    ]
    for text, order in timed_orders:
        if order.at_s >= seconds:
            reason = f"{text} would come after the end: the swarm trains for {seconds:g} s"
            raise UsageError(reason, "Name an earlier time, or give more --rounds or --minutes.")
    for kill in churn.kills:
        if not _begins_before(kill, churn.joins, peers):
            raise UsageError(f"--kill {kill}: there is no peer {kill.number} then", "Let it --join before.")
    for join in churn.joins:
        killed = any(kill.number == join.number and kill.at_s < join.at_s for kill in churn.kills)
        if join.number <= peers and not killed and churn.faults is None:
            reason = f"--join {join}: peer {join.number} begins with the swarm, and nobody kills it before"
            raise UsageError(reason, f"Name the newcomer {peers + 1}, or --kill peer {join.number} before.")
    for speed in speeds:
        if speed.number > peers and speed.number not in newcomers:
            raise UsageError(f"--throttle {speed}: there is no peer {speed.number}", "Let it --join, or raise --peers.")
        if not 0 < speed.at_s <= 1:
            raise UsageError(f"--throttle {speed} is no part of a speed", "Write e.g. --throttle 2@0.5.")


def _begins_before(kill: TimedEvent, joins: Iterable[TimedEvent], peers: int) -> bool:
    return kill.number <= peers or any(join.number == kill.number and join.at_s < kill.at_s for join in joins)


def derive_manifest(
    base: str,
    *,
    preset: str | None,
    settings: tuple[str, ...],
    rounds: int | None,
    steps: int | None,
    minutes: float | None,
    seed: int | None,
    own_default: bool,
) -> str:
    """Return the base manifest with the command line's overrides. Raises UsageError or ManifestError."""
    defaults = (DEFAULT_SETTINGS if minutes is None else TIMED_SETTINGS) if own_default else ()
    changes = ["start=0", *defaults]  # the swarm begins when it is ready
    changes += settings
    if preset is not None:
        changes.append(f"sync.preset={preset}")
    if seed is not None:
        changes.append(f"seed={seed}")
    text = derive(base, changes)
    length = _length(text, rounds, steps, minutes)
    return text if length is None else derive(text, [f"train.total_rounds={length}"])


def data_folders(given: tuple[str, ...], kind: str, numbers: Collection[int]) -> dict[int, Path]:
    """Return the folder of each peer's texts: `K@FOLDER` is for peer K, `FOLDER` for all others. `kind`: of the run's
    data. Empty if the run does not use the peers' own texts.

    Raises UsageError for a peer without texts and for texts that the run would not read; DataError for a folder that
    does not exist or holds no text."""
    if kind == "tokens":
        return {}  # `shard_folder` reads the option
    if kind != "text":
        if given:
            raise UsageError(f"this run brings its own data ({kind}): --data is not read", "Add --set data.kind=text.")
        return {}
    everybodys: Path | None = None
    found: dict[int, Path] = {}
    for text in given:
        which, at, path = text.partition("@")
        if at and which.isdecimal():
            found[int(which)] = _folder(path)
        else:
            everybodys = _folder(text)
    for number in numbers:
        if (its := found.get(number, everybodys)) is None:
            raise UsageError(
                f"this run trains on the peers' own texts, and peer {number} has none",
                "Add --data FOLDER for all peers, or --data K@FOLDER for peer K alone.",
            )
        found[number] = its
    if strangers := found.keys() - set(numbers):
        raise UsageError(f"--data {min(strangers)}@…: there is no such peer", "Peers count from 1.")
    for folder in set(found.values()):
        if not (seen := survey(folder)).files:
            raise DataError(
                f"the data folder {folder} holds no text: {seen.summary()}", "Give --data folders with texts."
            )
    return found


def shard_folder(given: tuple[str, ...], kind: str) -> Path | None:
    """Return the folder of token shards, which the bootstrap node serves to all peers. `kind`: of the run's data. None:
    no folder was given, or the run uses other data.

    Raises UsageError for several folders, and DataError for one that does not exist."""
    if kind != "tokens" or not given:
        return None
    if len(given) > 1:
        raise UsageError("this run has its token shards in one folder, and --data names several", "Give --data once.")
    which, at, path = given[0].partition("@")
    if at and which.isdecimal() and not Path(given[0]).exists():
        raise UsageError(
            f"peer {which} has no token shards of its own: peers fetch them from the bootstrap node",
            f"Give one folder for all: --data {for_shell(path)}",
        )
    return _folder(given[0])


def _folder(path: str) -> Path:
    folder = Path(path).absolute()
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist or is no folder", "Give --data existing folders.")
    return folder


def with_founders(manifest: str, peers: int) -> str:
    """Return the manifest with `sync.founders` set to the number of peers, because all of them begin together.
    Unchanged if it has no groups, sets `sync.founders` itself, or the swarm is larger than a group may be. Raises
    ManifestError."""
    method = resolve(parse_manifest(manifest.encode()).sync)
    if not method.one_state or method.founders or peers > method.max_group:
        return manifest
    return derive(manifest, [f"sync.founders={peers}"])


def _length(text: str, rounds: int | None, steps: int | None, minutes: float | None) -> int | None:
    """Return the rounds of the run. None: as in the manifest. Raises UsageError."""
    if sum(value is not None for value in (rounds, steps, minutes)) > 1:
        raise UsageError("--rounds, --steps and --minutes exclude each other", "Give one of them.")
    method = resolve(parse_manifest(text.encode()).sync)
    if rounds is not None:
        return rounds * method.fragments
    if steps is not None:
        if method.clock != "steps" or steps % int(method.sync_every):
            raise UsageError(
                f"--steps {steps} is no whole number of rounds of {method.sync_every:g} {method.clock}",
                'Use a multiple of sync_every with clock = "steps", or --rounds.',
            )
        return steps // int(method.sync_every) * method.fragments
    if minutes is not None and method.clock == "seconds":
        return max(1, math.ceil(minutes * 60 / method.round_length))
    return None
