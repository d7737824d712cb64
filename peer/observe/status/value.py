"""The status of a daemon: one frozen value, made by the daemon, rendered by the terminal, the text, the page and JSON.

`peer.observe.status.codec` writes it as the JSON of `peer status --json` and reads it back. The names of the fields are
the JSON keys, and the order of the fields is the order of the keys. A new fact is one field here and one line where the
part of the daemon that knows it makes its section. Times are seconds, sizes bytes and rates bytes per second, unless a
name or docstring says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from peer.observe.line_bytes import LineBytes
from peer.observe.status.codec import FLAT, OPTIONAL
from peer.observe.totals import Ledger
from peer.protocol.summary.loss_history import LossPoint
from peer.protocol.summary.run_totals import PeerLine, RunTotals


class NoticeSeverity(StrEnum):
    """How much a notice matters."""

    NOTE = "note"
    WARNING = "warning"
    SERIOUS = "serious"
    """It keeps this peer from training, or from the others."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know. `peer.observe.status.notices` makes all of them."""

    code: str
    """Names its kind, for programs."""
    about: str
    """What it is about, in a word or two, or a peer id: a label before the sentence."""
    sentence: str
    fix: str = ""
    """What a person can do, a sentence with its full stop; empty: nothing."""
    severity: NoticeSeverity = NoticeSeverity.WARNING
    brief: str = ""
    """In place of the sentence in a line that is repeated, where the daemon itself logs the sentence when it begins."""
    local: bool = False
    """It may name an address, and is shown on this machine alone, not on a page."""

    @property
    def text(self) -> str:
        """The sentence, and the fix where there is one."""
        return f"{self.sentence}. {self.fix}" if self.fix else self.sentence


@dataclass(frozen=True, slots=True)
class KnownFact:
    """An answer with its reason. `value` None: not known yet."""

    value: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class LeavingStatus:
    """What a daemon that leaves still does."""

    told: str
    """The plan as one line, for a person."""
    announced_s: float
    parts: Mapping[str, float]
    """Seconds by what is done."""
    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A place that a relay holds for this peer."""

    peer_id: str
    endpoint: str
    rate: float


@dataclass(frozen=True, slots=True)
class RelayingStatus:
    """What this daemon relays for closed peers."""

    rate: float
    reservations: int
    circuits: int
    bytes: int
    why_not: str
    """Empty: it relays."""


@dataclass(frozen=True, slots=True)
class PapersStatus:
    """The operator's signed papers."""

    held: int
    refused: int
    start: float
    """Seconds since the epoch; 0: no paper says."""
    delegated_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """The DHT and its helper process p2pd."""

    state: str
    """`joined`, `alone` or `rebuilding`."""
    why: str
    """What is amiss; empty: nothing."""
    losses: int
    """How often p2pd was lost."""
    last_loss: str
    pid: int | None
    memory: int
    neighbours: int
    own_network: str


@dataclass(frozen=True, slots=True)
class ControlBytes:
    """Bytes of control messages by purpose."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CapsStatus:
    """The volunteer's caps. None: no cap."""

    sent: float | None
    received: float | None


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """The current wait."""

    name: str
    """The part in brackets may change meanwhile."""
    done: float
    total: float | None
    """None: not known."""
    unit: str
    """With `s` only the time counts: `done` is how long it has taken, `total` the most it may take."""
    seconds: float
    """Since it began."""
    rate: float | None
    """Units per second; 0: not known. None: an older daemon has no rate."""


@dataclass(frozen=True, slots=True)
class RunAbout:
    """What the manifest says of a run, for a person."""

    model: str
    data: str
    preset: str
    clock: str
    sync_every: float
    """Seconds or inner steps, as `clock` says."""


@dataclass(frozen=True, slots=True)
class ManifestStatus:
    """What is known once the manifest is."""

    parameters: int
    total_rounds: int | None
    about: RunAbout
    ends_at: float | None
    """When the last round is due, seconds since the epoch; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractTerms:
    """What a run takes of this machine, as the volunteer agreed to it."""

    run: str
    operator: str
    """Peer id of the key that signed the manifest."""
    model: str
    parameters: int
    data: str
    memory_bytes: int
    """Main memory of daemon and trainer, estimated."""
    disk_bytes: int
    """The most that checkpoints and the cache take in the home."""
    bytes_an_hour: float | None
    """Each way over the line. None: rounds are in inner steps, so the hour is not known."""
    device: str
    threads: int
    bytes_up_a_day: int | None
    """On the line, with headers and small messages. None: rounds are in inner steps."""
    bytes_down_a_day: int | None
    """As `bytes_up_a_day`. The first state comes once more."""
    upload_limit: int | None
    """The volunteer's own limit of a day, in bytes. None: there is none."""
    bytes_a_sync: int
    """Payload each way between two exchanges of everything."""
    ends_at: float | None
    """Seconds since the epoch. None: not known."""
    length: str
    """How long the run is, for a person."""
    worth: str
    """What the peers together are worth, for a person."""
    log: str
    """The file of the daemon's log."""
    guest: str
    """How the trainer gives way to the machine's owner, for a person."""
    summary: bool
    """Whether this peer sends the run's nodes a summary of what it does."""


@dataclass(frozen=True, slots=True)
class ContractStatus:
    contract: ContractTerms = field(metadata=FLAT)
    agreed_at: float
    """Seconds since the epoch."""
    terms: tuple[tuple[str, str], ...]
    """Labels and values for a person: those that the status does not show elsewhere."""


@dataclass(frozen=True, slots=True)
class DiagnosisFinding:
    """An unusual number."""

    what: str
    """`nothing`: there is none."""
    who: str
    """`you`, or a peer id; empty: nobody."""
    number: float
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """Our own medians over the last exchanges. None: there were too few."""

    sent: float | None = field(default=None, metadata=OPTIONAL)
    received: float | None = field(default=None, metadata=OPTIONAL)
    late_s: float | None = field(default=None, metadata=OPTIONAL)
    """Seconds that the trainer is ready after those of the partners."""


@dataclass(frozen=True, slots=True)
class RefusedParams:
    peer_id: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartnerParamsStatus:
    """What became of the partners' params since this start."""

    asked: str
    """What the run asks for: `finite`, `check`, `clip` ..."""
    taken: int
    clipped: int
    refused: int
    unchecked: int
    """Some of the three above."""
    why_unchecked: str
    """Why the last ones were not checked; empty: they were."""
    last_refused: RefusedParams | None


@dataclass(frozen=True, slots=True)
class ReceiptsStatus:
    """Receipts signed by partners."""

    kept: int
    waiting: int
    refused: int


@dataclass(frozen=True, slots=True)
class LeftOutContributor:
    peer_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Whether enough members are here for an outer step."""

    live: int
    needed: int
    lacking: str
    """Empty: nothing is lacking."""
    left_out: tuple[LeftOutContributor, ...]
    """Contributors that our last shard left out."""


@dataclass(frozen=True, slots=True)
class RoundsStatus:
    """What is known once the rounds have begun."""

    round: int
    next_due_in_s: float | None
    """None: not in seconds, or no round is waited for."""
    last_partner: str
    """Its peer id; of a group, how many others."""
    last_outcome: str
    """Empty: no round has ended."""
    last_seconds: float
    """Of the last exchange's transfer."""
    rounds: Mapping[str, int]
    """Rounds that were due, and rounds by outcome."""
    paths: Mapping[str, int]
    """Exchanged rounds by the path of their bytes."""
    diagnosis: tuple[DiagnosisFinding, ...]
    """Findings, or one entry that says why there is none."""
    exchanging: ExchangeRates
    partner_params: PartnerParamsStatus | None = field(default=None, metadata=OPTIONAL)
    receipts: ReceiptsStatus | None = field(default=None, metadata=OPTIONAL)
    group: GroupStatus | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class SuspectedPeer:
    """A peer that does not answer."""

    peer_id: str
    out: bool
    """It is left out of candidates: others do not reach it either."""
    seconds: float
    reason: str
    asked: int
    """Peers that were asked about it."""
    denied: int
    """Those of them that do not reach it."""


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    suspected: tuple[SuspectedPeer, ...]
    """The first of them."""
    suspected_count: int
    out_count: int
    cut_off_s: float | None
    """Seconds since anybody answered; None: somebody does."""


@dataclass(frozen=True, slots=True)
class PathStatus:
    """The path of the open connection to a peer, and why it is that one. Empty texts: there is none."""

    path: str
    via: str
    why: str


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another peer, as its record and our connections show it."""

    peer_id: str
    status: str
    round: int
    endpoints: tuple[str, ...]
    reachable: bool
    relays: tuple[str, ...]
    path: PathStatus
    pairs: str
    """`yes`, `no` or `last` (asked behind all others), with the reason after a colon."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """What is known once the trainer runs."""

    steps: int
    tokens: int
    loss: float | None
    """Nats a token, of the latest step; None: none yet, or not finite."""
    tokens_per_s: float
    trainer_waits: str
    """What it waits for; empty: it trains."""
    trainer_pid: int | None
    seconds_training: float
    seconds_waiting: float
    ledger: Ledger
    val_loss: tuple[int, float | None, float | None] | None
    """Round, nats a token and bits a byte of the latest evaluation; None: not evaluated yet."""
    logged: Mapping[str, float] | None = field(default=None, metadata=OPTIONAL)
    """The last values that an attached loop has logged, by name; None: none."""


@dataclass(frozen=True, slots=True)
class AdmissionStatus:
    kind: str
    """`open` or `invited`."""
    until: str | None
    """The day that our invitation ends on; None: we have none."""
    proven: int
    """Peers that earned trust."""
    left_out: int
    """Strangers that the latest search left out, since their address blocks had their places."""


@dataclass(frozen=True, slots=True)
class ShunnedPeer:
    peer_id: str
    seconds_left: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeclinedCall:
    """A call that was refused."""

    seconds_ago: float
    caller: str
    """A peer id, or the address of a caller that proved none."""
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReputationStatus:
    refusal_counts: Mapping[str, int]
    """By code, since the daemon started."""
    out_of_favour: tuple[ShunnedPeer, ...]
    refusals: tuple[DeclinedCall, ...]
    """The last ones, newest first."""


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """A condition that the volunteer asked for."""

    value: bool | None
    """Whether it holds; None: not known."""
    why: str
    measured: str
    """The number behind it with its unit; empty: there is none."""


@dataclass(frozen=True, slots=True)
class PauseStatus:
    """The volunteer's own pause. Times in seconds since the epoch."""

    now: str
    """Why nothing is trained, or `no`."""
    since: float | None
    """Begin of `peer pause`; None: no such pause."""
    until: float | None
    """Its end; None: it ends with `peer resume`."""
    quiet_hours: str | None
    conditions: Mapping[str, ConditionStatus]

    @property
    def holds(self) -> bool:
        """Whether the machine is left alone now."""
        return self.now not in ("", "no")


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """How this machine came into the run, and whether it is fit for it."""

    joined_in_s: float | None
    """None: it has not joined yet."""
    waited_for_you_s: float
    """Beside `joined_in_s`: until a person answered."""
    phases_s: Mapping[str, float]
    micro_batch: str
    unfit: tuple[str, ...]
    """What is too slow or too small here, a sentence each."""
    fixes: tuple[str, ...]
    """What a person can do about each of them."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The volunteer's upload quota: bytes on the line, by `day` and `month` of local time."""

    used: Mapping[str, int]
    limit: Mapping[str, int | None]
    why: str
    """Why exchanges wait; empty: they do not."""
    kept_back: Mapping[str, int]
    """Estimate of the control traffic until the end of each limited period, which no payload may use."""


@dataclass(frozen=True, slots=True)
class KeptStateFacts:
    """A state that the operator's node serves to joiners."""

    round: int
    tokens: int
    """Tokens that the run had trained on; an estimate."""
    loss: float | None
    """On the hold-out, nats a token; None: unchecked."""
    donors: tuple[str, ...]
    founded: str
    """Digest of the restart that it descends from, in hex; empty: the run's own beginning."""


@dataclass(frozen=True, slots=True)
class KeptStatus:
    state: KeptStateFacts | None
    why: str
    ended: bool


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """A run as a node of the operator has it."""

    name: str
    run_id: str
    preset: str
    parameters: int
    started: float | None
    """When round 0 began, seconds since the epoch; None: not yet."""
    total_rounds: int | None
    ended: bool


@dataclass(frozen=True, slots=True)
class ViewedAmendment:
    number: int
    what: str
    round: int


@dataclass(frozen=True, slots=True)
class JoinOffer:
    ticket: str


@dataclass(frozen=True, slots=True)
class RunViewStatus:
    """What a node of the operator knows of the run, as peers say it."""

    run: ViewedRun
    round: int
    peers: tuple[PeerLine, ...]
    totals: RunTotals
    loss: tuple[LossPoint, ...]
    """The oldest first."""
    amendments: tuple[ViewedAmendment, ...]
    """The last ones."""
    join: JoinOffer
    dropped: Mapping[str, int]
    """Summaries by the reason why they were dropped."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """The status of a peer or of a bootstrap node. None: the part is not there yet, or not in this role."""

    role: str
    """`peer` or `bootstrap`."""
    peer_id: str
    run_id: str
    run: str
    """The run's name; empty: not known yet."""
    status: str
    phase: str
    """What goes on, for a person."""
    leaving: LeavingStatus | None
    uptime_s: float
    log: str
    endpoints: tuple[str, ...]
    addresses: tuple[str, ...]
    reachable: KnownFact
    port_mapping: KnownFact
    relays: tuple[RelayPlace, ...]
    relaying: RelayingStatus
    amendments: int
    amended: tuple[str, ...]
    """The last amendments, a sentence each."""
    papers: PapersStatus | None
    neighbours: int
    directory: DirectoryStatus
    clock_correction_s: float
    bytes_sent: int
    bytes_received: int
    control_bytes: ControlBytes
    line_bytes: LineBytes | None
    caps: CapsStatus
    wait: WaitStatus | None
    page: str
    """Address of the page for browsers."""
    key_shared: str | None = field(default=None, metadata=OPTIONAL)
    """That another machine has our key, a sentence."""
    manifest: ManifestStatus | None = field(default=None, metadata=FLAT)
    contract: ContractStatus | None = field(default=None, metadata=OPTIONAL)
    progress: RoundsStatus | None = field(default=None, metadata=FLAT)
    membership: MembershipStatus | None = field(default=None, metadata=OPTIONAL)
    peers: tuple[PeerStatus, ...] | None = field(default=None, metadata=OPTIONAL)
    training: TrainingStatus | None = field(default=None, metadata=FLAT)
    admission: AdmissionStatus | None = field(default=None, metadata=OPTIONAL)
    reputation: ReputationStatus | None = field(default=None, metadata=FLAT)
    paused: PauseStatus | None = field(default=None, metadata=OPTIONAL)
    machine: MachineStatus | None = field(default=None, metadata=OPTIONAL)
    budget: BudgetStatus | None = field(default=None, metadata=OPTIONAL)
    operators_key: str | None = field(default=None, metadata=OPTIONAL)
    """Whether the operator's key lies on this node, with the advice not to."""
    kept: KeptStatus | None = field(default=None, metadata=OPTIONAL)
    view: RunViewStatus | None = field(default=None, metadata=OPTIONAL)
    """What a node of the operator knows of the run."""
    notices: tuple[Notice, ...] = ()

    @property
    def paused_now(self) -> bool:
        """Whether the volunteer's own pause holds."""
        return self.paused is not None and self.paused.holds
