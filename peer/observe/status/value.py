"""The status of a daemon: one frozen value, which the daemon makes and the terminal, `peer status`, the page and JSON
show.

`peer.observe.status.codec` converts it to the JSON of `peer status --json` and back. Field names are the JSON keys, in
this order. To add a fact, add a field to its section and set it where the daemon's part makes that section (its
`report`). Times are seconds, sizes bytes and rates bytes per second, unless a name or docstring says otherwise."""

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
    """Severity of a notice."""

    NOTE = "note"
    WARNING = "warning"
    SERIOUS = "serious"
    """The peer cannot train, or cannot exchange with others."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that warns a person. All of them are made in `peer.observe.status.notices`."""

    code: str
    """The kind, for programs."""
    about: str
    """The subject in one or two words, or a peer id. Shown as a label before the sentence."""
    sentence: str
    fix: str = ""
    """What a person can do, as a sentence with its full stop. Empty: nothing."""
    severity: NoticeSeverity = NoticeSeverity.WARNING
    brief: str = ""
    """Short form for the repeated status line, where the daemon logs the full sentence once. Empty: the sentence is
    repeated."""
    local: bool = False
    """The sentence may contain a network address, so it is shown on this machine only and not on a page."""

    @property
    def text(self) -> str:
        """The sentence, followed by the fix if there is one."""
        return f"{self.sentence}. {self.fix}" if self.fix else self.sentence


@dataclass(frozen=True, slots=True)
class KnownFact:
    """A yes or no with its reason. `value` None: not known yet."""

    value: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class LeavingStatus:
    """The plan of a daemon that is leaving."""

    told: str
    """The plan as one line, for a person."""
    announced_s: float
    parts: Mapping[str, float]
    """Estimated seconds of each activity."""
    since_s: float
    why: str


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A reservation of this peer at a relay. `rate`: bytes per second that the relay grants."""

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
    """Why it does not relay. Empty: it does."""


@dataclass(frozen=True, slots=True)
class PapersStatus:
    """The papers of the operator that this peer holds."""

    held: int
    refused: int
    start: float
    """The run's signed start, seconds since the epoch. 0: no paper states it."""
    delegated_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """The DHT and its helper process p2pd."""

    state: str
    """`joined`, `alone` (no other node is reached) or `rebuilding`."""
    why: str
    """What is wrong. Empty: nothing."""
    losses: int
    """How often p2pd was lost since the daemon's start."""
    last_loss: str
    pid: int | None
    memory: int
    neighbours: int
    own_network: str


@dataclass(frozen=True, slots=True)
class ControlBytes:
    """Bytes of control messages, by purpose."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CapsStatus:
    """The volunteer's limits on the transfer rates. None: no limit."""

    sent: float | None
    received: float | None


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """What the daemon is waiting for."""

    name: str
    """A part in brackets may change during the wait."""
    done: float
    total: float | None
    """None: not known."""
    unit: str
    """With `s` only time counts: `done` is the time waited so far and `total` the timeout."""
    seconds: float
    """Duration of the wait so far."""
    rate: float | None
    """Units per second. 0: not known. None: an older daemon, which measures no rate."""


@dataclass(frozen=True, slots=True)
class RunAbout:
    """The manifest's main choices, for a person."""

    model: str
    data: str
    preset: str
    clock: str
    sync_every: float
    """Seconds or inner steps, according to `clock`."""


@dataclass(frozen=True, slots=True)
class ManifestStatus:
    """What is known once the manifest has been read."""

    parameters: int
    total_rounds: int | None
    about: RunAbout
    ends_at: float | None
    """When the last round is due, seconds since the epoch. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractTerms:
    """What the run uses of this machine, as the volunteer agreed to it."""

    run: str
    operator: str
    """Peer id of the key that signed the manifest."""
    model: str
    parameters: int
    data: str
    memory_bytes: int
    """Estimated main memory of daemon and trainer."""
    disk_bytes: int
    """Largest size of checkpoints and cache in the home."""
    bytes_an_hour: float | None
    """Bytes in each direction. None: not known, because rounds are counted in inner steps."""
    device: str
    threads: int
    bytes_up_a_day: int | None
    """Bytes on the line, including headers and control messages. None: not known, because rounds are counted in inner
    steps."""
    bytes_down_a_day: int | None
    """As `bytes_up_a_day`, without the download of the first state."""
    upload_limit: int | None
    """The volunteer's own daily upload budget in bytes. None: there is none."""
    bytes_a_sync: int
    """Payload in each direction until every fragment has been exchanged once."""
    ends_at: float | None
    """Seconds since the epoch. None: not known."""
    length: str
    """Length of the run, for a person."""
    worth: str
    """What all peers together contribute, compared with one, for a person."""
    log: str
    """Path of the daemon's log file."""
    guest: str
    """How the trainer yields to the machine's owner, for a person."""
    summary: bool
    """Whether this peer sends summaries to the operator's nodes."""


@dataclass(frozen=True, slots=True)
class ContractStatus:
    """The contract, when the volunteer agreed to it, and its terms as text."""

    contract: ContractTerms = field(metadata=FLAT)
    agreed_at: float
    """Seconds since the epoch."""
    terms: tuple[tuple[str, str], ...]
    """Labels and values for a person, without what the status shows elsewhere."""


@dataclass(frozen=True, slots=True)
class DiagnosisFinding:
    """An unusual measurement of a link or trainer."""

    what: str
    """The kind of finding. `nothing`: there is none."""
    who: str
    """`you`, or a peer id. Empty: neither."""
    number: float
    unit: str
    why: str


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """Our own medians over the latest exchanges. None: there were too few exchanges."""

    sent: float | None = field(default=None, metadata=OPTIONAL)
    received: float | None = field(default=None, metadata=OPTIONAL)
    late_s: float | None = field(default=None, metadata=OPTIONAL)
    """Seconds by which our trainer is ready later than the partners' trainers."""


@dataclass(frozen=True, slots=True)
class RefusedParams:
    """The latest refusal of a partner's params."""

    peer_id: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartnerParamsStatus:
    """How many partners' params were taken, clipped, refused or not checked since the daemon's start."""

    asked: str
    """The check that the run asks for: `finite`, `check`, `clip` ..."""
    taken: int
    clipped: int
    refused: int
    unchecked: int
    """How many of the three counts above were not checked."""
    why_unchecked: str
    """Why the latest params were not checked. Empty: they were."""
    last_refused: RefusedParams | None


@dataclass(frozen=True, slots=True)
class ReceiptsStatus:
    """Receipts of swaps: signed by the partner and stored, waiting for a signature, or with an invalid signature."""

    kept: int
    waiting: int
    refused: int


@dataclass(frozen=True, slots=True)
class LeftOutContributor:
    """A contributor that our shard excluded, and why."""

    peer_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Whether the group has enough members for an outer step."""

    live: int
    needed: int
    lacking: str
    """What is missing for the quorum. Empty: nothing."""
    left_out: tuple[LeftOutContributor, ...]
    """Contributors that our latest shard excluded from its mean."""


@dataclass(frozen=True, slots=True)
class RoundsStatus:
    """What is known once the rounds have begun."""

    round: int
    next_due_in_s: float | None
    """None: the run's clock counts steps, or no round is pending."""
    last_partner: str
    """Peer id; for a group, the number of other members."""
    last_outcome: str
    """Empty: no round has ended yet."""
    last_seconds: float
    """Duration of the latest transfer."""
    rounds: Mapping[str, int]
    """Number of due rounds, and number of rounds for each outcome."""
    paths: Mapping[str, int]
    """Number of exchanged rounds for each path."""
    diagnosis: tuple[DiagnosisFinding, ...]
    """The findings, or a single entry that says why there is none."""
    exchanging: ExchangeRates
    partner_params: PartnerParamsStatus | None = field(default=None, metadata=OPTIONAL)
    receipts: ReceiptsStatus | None = field(default=None, metadata=OPTIONAL)
    group: GroupStatus | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class SuspectedPeer:
    """A peer that does not answer us."""

    peer_id: str
    out: bool
    """True: it is no candidate any more, because other peers do not reach it either."""
    seconds: float
    reason: str
    asked: int
    """Number of peers that were asked whether they reach it."""
    denied: int
    """Number of these that do not reach it."""


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """What the failure detector believes of the other peers."""

    suspected: tuple[SuspectedPeer, ...]
    """A bounded number of them."""
    suspected_count: int
    out_count: int
    cut_off_s: float | None
    """Seconds since any peer answered. None: at least one answers."""


@dataclass(frozen=True, slots=True)
class PathStatus:
    """Path of the open connection to a peer, and why it was chosen. Empty: there is no connection."""

    path: str
    via: str
    why: str


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another peer, from its directory record and our connection to it."""

    peer_id: str
    status: str
    round: int
    endpoints: tuple[str, ...]
    reachable: bool
    relays: tuple[str, ...]
    path: PathStatus
    pairs: str
    """Whether it may be a partner: `yes`, `no` or `last` (asked after all others), with the reason after a colon."""


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """What is known once the trainer runs."""

    steps: int
    tokens: int
    loss: float | None
    """Loss of the latest step, nats a token. None: no step yet, or not finite."""
    tokens_per_s: float
    trainer_waits: str
    """What the trainer is waiting for. Empty: it trains."""
    trainer_pid: int | None
    seconds_training: float
    seconds_waiting: float
    ledger: Ledger
    val_loss: tuple[int, float | None, float | None] | None
    """Round, nats a token and bits per byte of the latest evaluation. None: not evaluated yet."""
    logged: Mapping[str, float] | None = field(default=None, metadata=OPTIONAL)
    """The latest value of each name that an attached training loop has logged. None: none."""


@dataclass(frozen=True, slots=True)
class AdmissionStatus:
    """Who may take part in the run, and how strangers are limited."""

    kind: str
    """`open` or `invited`."""
    until: str | None
    """Last day of our own invitation. None: we have none."""
    proven: int
    """Number of peers that count as proven."""
    left_out: int
    """Strangers that the latest search for a partner skipped, because the quota of their address block was used up."""


@dataclass(frozen=True, slots=True)
class ShunnedPeer:
    """A peer that is excluded for a while because of its reputation."""

    peer_id: str
    seconds_left: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeclinedCall:
    """A call that this peer refused."""

    seconds_ago: float
    caller: str
    """Peer id, or the address of a caller that has proven no key."""
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReputationStatus:
    """Offences and refused calls of other peers."""

    refusal_counts: Mapping[str, int]
    """Number of offences and refusals for each code, since the daemon started."""
    out_of_favour: tuple[ShunnedPeer, ...]
    refusals: tuple[DeclinedCall, ...]
    """The latest ones, newest first."""


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """A condition of `--when` and whether it holds."""

    value: bool | None
    """None: not known."""
    why: str
    measured: str
    """The measured value with its unit. Empty: there is none."""


@dataclass(frozen=True, slots=True)
class PauseStatus:
    """The volunteer's own pause. Times are seconds since the epoch."""

    now: str
    """Why the peer is paused, or `no`."""
    since: float | None
    """When `peer pause` was given. None: it was not."""
    until: float | None
    """When that pause ends. None: with `peer resume`."""
    quiet_hours: str | None
    conditions: Mapping[str, ConditionStatus]

    @property
    def holds(self) -> bool:
        """Whether the peer is paused at the moment."""
        return self.now not in ("", "no")


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """How long this machine took to join, and whether it is fast enough for the run."""

    joined_in_s: float | None
    """None: it has not joined yet."""
    waited_for_you_s: float
    """Waiting for a person's answer, which `joined_in_s` does not include."""
    phases_s: Mapping[str, float]
    micro_batch: str
    unfit: tuple[str, ...]
    """What is too slow or too small on this machine, one sentence each."""
    fixes: tuple[str, ...]
    """For each sentence of `unfit`, what a person can do."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """The volunteer's upload quota: bytes on the line for each `day` and `month` in local time."""

    used: Mapping[str, int]
    limit: Mapping[str, int | None]
    why: str
    """Why there are no exchanges. Empty: there are."""
    kept_back: Mapping[str, int]
    """Bytes reserved for control messages until the end of each limited period. Payloads may not use them."""


@dataclass(frozen=True, slots=True)
class KeptStateFacts:
    """A state that the operator's node serves to joiners."""

    round: int
    tokens: int
    """Estimated tokens that the run had trained on."""
    loss: float | None
    """Nats a token on the hold-out. None: the state was not evaluated."""
    donors: tuple[str, ...]
    founded: str
    """Digest of the restart state (amendment `refound`) that it descends from, hex. Empty: it descends from the run's
    first state."""


@dataclass(frozen=True, slots=True)
class KeptStatus:
    """The state that an operator's node has fetched from the run and stored. `ended`: the run is over."""

    state: KeptStateFacts | None
    why: str
    ended: bool


@dataclass(frozen=True, slots=True)
class ViewedRun:
    """The run, as an operator's node shows it."""

    name: str
    run_id: str
    preset: str
    parameters: int
    started: float | None
    """When round 0 began, seconds since the epoch. None: not yet."""
    total_rounds: int | None
    ended: bool


@dataclass(frozen=True, slots=True)
class ViewedAmendment:
    """An amendment with its contents as a sentence, and the first round in which it holds."""

    number: int
    what: str
    round: int


@dataclass(frozen=True, slots=True)
class JoinOffer:
    """The ticket with which others can join."""

    ticket: str


@dataclass(frozen=True, slots=True)
class RunViewStatus:
    """The run as its peers report it to an operator's node in their summaries."""

    run: ViewedRun
    round: int
    peers: tuple[PeerLine, ...]
    totals: RunTotals
    loss: tuple[LossPoint, ...]
    """The oldest point first."""
    amendments: tuple[ViewedAmendment, ...]
    """The latest amendments."""
    join: JoinOffer
    dropped: Mapping[str, int]
    """Number of dropped summaries for each reason."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """The status of a peer or of a bootstrap node. None: the section is not known yet, or not in this role."""

    role: str
    """`peer` or `bootstrap`."""
    peer_id: str
    run_id: str
    run: str
    """Name of the run. Empty: not known yet."""
    status: str
    phase: str
    """The current activity, for a person."""
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
    """The latest amendments, one sentence each."""
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
    """Address of the page for browsers. Empty: no page."""
    key_shared: str | None = field(default=None, metadata=OPTIONAL)
    """A sentence: another process runs with our key. None: not the case."""
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
    """A sentence with advice, if the operator's key is stored on this node."""
    kept: KeptStatus | None = field(default=None, metadata=OPTIONAL)
    view: RunViewStatus | None = field(default=None, metadata=OPTIONAL)
    """The run view of an operator's node."""
    notices: tuple[Notice, ...] = ()

    @property
    def paused_now(self) -> bool:
        """Whether the volunteer's own pause is in force."""
        return self.paused is not None and self.paused.holds
