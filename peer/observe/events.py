"""The typed events of a peer, one class for each kind. The journal stores them; metrics, views and reports are made
from them.

Fields are flat and JSON-able. A new field needs a default, so that older journals can still be read. A field or kind
never changes its meaning. Rounds are round numbers, `reason` is one sentence for a person, and `peer` is a peer id,
unless a field says otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from peer.codes import AnyCode, CodeText

Outcome = Literal["exchanged", "solo", "refused"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
NO_CODE = CodeText("")


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base of all events. `kind` identifies the class in the journal."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The daemon has a state and is about to start the trainer."""

    kind: ClassVar[str] = "started"
    peer_id: str
    run_id: str
    """Hex."""
    version: str
    """Version of this program."""
    resumed: str
    """Where the state comes from, as a sentence: a checkpoint or a donor."""


@dataclass(frozen=True, kw_only=True)
class StateFetched(Event):
    """A donor's complete state was downloaded and verified."""

    kind: ClassVar[str] = "state_fetched"
    donor: str
    """Peer id."""
    round: int
    """The donor's round when it took the snapshot."""
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StateRefused(Event):
    """A fetched state was rejected, because its loss on the trainer's test windows was not plausible."""

    kind: ClassVar[str] = "state_refused"
    donor: str
    """Peer id; for a state that several donors served, their number."""
    round: int
    """The round that the donor named; of several donors, the first one's."""
    reason: str
    """A sentence with the losses."""


@dataclass(frozen=True, kw_only=True)
class TrainerStarted(Event):
    """The trainer process is ready, at the first start or after a restart."""

    kind: ClassVar[str] = "trainer_started"
    device: str
    reason: str
    """Why this device and precision were chosen."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Event):
    """The batch of an inner step is computed in parts, because it does not fit into memory at once."""

    kind: ClassVar[str] = "micro_batch"
    windows: int
    """Windows that go through the model at once."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """The first inner step since the daemon's start is done. The fields are durations in seconds."""

    kind: ClassVar[str] = "joined"
    seconds: float
    """From the start of the command, without `waited_for_person`. It is the sum of the phases from `program` to
    `first_step`, and of `terms` and `files`."""
    program: float
    """Loading the program."""
    network: float
    """Listening, starting the DHT helper, and reaching a first peer."""
    manifest: float
    amendments: float
    """Fetching the amendments from other peers."""
    state: float
    clock: float
    trainer: float
    """Waiting for the trainer after everything else was ready."""
    others: float
    """Waiting for the start of the run, or for enough peers."""
    first_evaluation: float
    first_step: float
    torch_import: float = 0.0
    """In the trainer's process, in parallel with the phases above, like the three fields that follow."""
    waiting_for_the_state: float = 0.0
    data: float = 0.0
    model: float = 0.0
    terms: float = 0.0
    """Computing the contract, and surveying the volunteer's own texts. This phase follows `manifest`."""
    files: float = 0.0
    """Fetching the run's files, and preparing the trainer's process. This phase follows `terms`."""
    waited_for_person: float = 0.0
    """Waiting for an answer at the terminal, or for an unmetered connection. No other field includes it."""


@dataclass(frozen=True, kw_only=True)
class Unfit(Event):
    """This machine or its link is too slow to take part in every round."""

    kind: ClassVar[str] = "unfit"
    reason: str
    """A sentence with the measured numbers."""


@dataclass(frozen=True, kw_only=True)
class TrainerDeath(Event):
    """The trainer process crashed or was killed."""

    kind: ClassVar[str] = "trainer_died"
    cause: str
    """Signal, exit code or exception, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class TrainingBegan(Event):
    """Training starts. From here on the peer counts as live."""

    kind: ClassVar[str] = "training_began"
    round: int
    """The first round that this peer will take part in."""


@dataclass(frozen=True, kw_only=True)
class RoundDue(Event):
    """A round is due for this peer. Either RoundEnded or RoundMissed follows."""

    kind: ClassVar[str] = "round_due"
    round: int
    fragment: int
    """Index into the layout."""
    deadline: float
    """Seconds since the epoch, by the run's clock."""


@dataclass(frozen=True, kw_only=True)
class RoundEnded(Event):
    """An outer step was computed. The event is written before the trainer's base counter moves to `upto` (write-ahead),
    so that after a kill no work counts twice."""

    kind: ClassVar[str] = "round_ended"
    round: int
    fragment: int
    """Index into the layout."""
    outcome: Outcome
    partner: str
    """Peer ids of the partners, separated by spaces. Empty unless exchanged."""
    reason: str
    """Why there was no exchange, as a sentence. Empty when there was one."""
    applied: int
    """Work that entered the outer step, tokens x elements of the fragment."""
    dropped: int
    """Work that no outer step will include, tokens x elements of the fragment."""
    upto: int
    """The trainer's token counter up to which this event accounts for the work."""
    steps: int
    """Inner steps since the fragment's base, the snapshot that was merged last."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Duration of the transfer."""
    digest: str = ""
    """Groups: digest of the fragment's new state, equal on every member. Hex."""
    ready_at: float = 0.0
    """Pairs that exchanged: when our payload was ready. Run time in seconds, as the three times that follow. 0: not
    known."""
    partner_ready_at: float = 0.0
    """When the partner's payload was ready, as the partner reported it."""
    first_byte_at: float = 0.0
    done_at: float = 0.0
    rate_sent: float = 0.0
    """Bytes per second between the first and the last byte."""
    rate_received: float = 0.0
    data_from: str = ""
    """Position in the peer's data where the work of this round begins: `epoch.place.window`. Empty: not known."""
    data_to: str = ""
    """Position of the first batch after this work."""
    data_skipped: str = ""
    """Shards that were skipped between the two positions, in the format of `peer.protocol.data_span`."""
    path: str = ""
    """How the bytes travelled: `direct`, `mapped`, `punched` or `relayed`. Empty unless exchanged, and in journals of
    versions that knew direct paths only."""
    path_via: str = ""
    """Peer id of the relay that spliced the connection or introduced the two peers. Empty: none was involved."""
    path_why: str = ""
    """Why this path was chosen, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class ShardSkipped(Event):
    """A shard of the run's data could not be fetched. Training continues with the next one."""

    kind: ClassVar[str] = "shard_skipped"
    epoch: int
    place: int
    """Index in this peer's shuffled order of the epoch."""
    shard: int
    """Number in the data index."""
    digest: str
    """Hex."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Dropped(Event):
    """Work was discarded: no outer step will include it."""

    kind: ClassVar[str] = "dropped"
    fragment: int
    """Index into the layout."""
    dropped: int
    """Tokens x elements of the fragment."""
    upto: int
    """The trainer's token counter up to which this event accounts for the work."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class DiagnosisChanged(Event):
    """The diagnosis found something slow or stuck, or its finding no longer holds. See
    `peer.protocol.diagnosis.analysis`."""

    kind: ClassVar[str] = "diagnosis_changed"
    what: str
    """`slow_uplink`, `slow_downlink`, `slow_link`, `late_trainer`, `never_ready` or `stalled`."""
    who: str
    """`you` or a peer id."""
    number: float
    unit: str
    why: str
    """A sentence with the number."""
    found: bool
    """True: the finding begins. False: it has ended."""


@dataclass(frozen=True, kw_only=True)
class RoundMissed(Event):
    """The round had no outcome by its deadline."""

    kind: ClassVar[str] = "round_missed"
    round: int
    fragment: int
    """Index into the layout."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class SatOut(Event):
    """The peer took no outer step in a round, because it had made no inner step for it. Its work is carried over to the
    next round."""

    kind: ClassVar[str] = "sat_out"
    round: int
    fragment: int
    """Index into the layout."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class CaughtUp(Event):
    """A fragment's state was fetched from the group outside of a round: before the first round, after the last, or
    after a round was missed in whole or in part."""

    kind: ClassVar[str] = "caught_up"
    round: int
    """The next round."""
    fragment: int
    """Index into the layout."""
    bytes: int
    peer: str
    """Peer id of the sender."""
    digest: str
    """Digest of the fragment's new state, equal on every member. Hex."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """The peer jumped over rounds, because it slept or fell behind the swarm."""

    kind: ClassVar[str] = "skipped"
    from_round: int
    """The first skipped round."""
    to_round: int
    """The first round that is not skipped."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PartnerFailed(Event):
    """An exchange with a locked partner failed. The round continues."""

    kind: ClassVar[str] = "partner_failed"
    peer: str
    """Peer id."""
    round: int
    code: AnyCode
    """`lost`, `late`, `silent`, `path` (a relay was gone), or the code of the partner's refusal or of the defect in its
    bytes."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PartnerLetGo(Event):
    """This peer pauses or leaves, and released a locked partner before any byte was sent. The partner looks for another
    one."""

    kind: ClassVar[str] = "partner_let_go"
    peer: str
    """Peer id."""
    round: int
    heard: bool
    """Whether the partner received the release. If not, it learns of it at its next call."""


@dataclass(frozen=True, kw_only=True)
class PartnerJudged(Event):
    """A partner's params were checked against our own. RoundEnded follows."""

    kind: ClassVar[str] = "partner_judged"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id."""
    verdict: str
    """`taken`, `clipped` or `refused`. `clipped`: we moved only part of the way from our params to the partner's."""
    reason: str
    """Why the params were clipped or refused, as a sentence. Empty when they were taken whole."""
    work: float
    """L2 norm of our own pseudo-gradient of this round."""
    distance: float
    """L2 norm of the difference between the partner's params and ours."""
    radius: float
    """The largest accepted distance, L2 norm."""
    gained: float = math.nan
    """Nats a token by which our own work lowered the loss on the check's windows. NaN: no check, as in the two fields
    that follow."""
    lost: float = math.nan
    """Nats a token by which the loss of the mean with the partner exceeds the loss of our own params."""
    limit: float = math.nan
    """The largest accepted value of `lost`."""
    windows: str = ""
    """Number and origin of the windows of the check. Empty: there was no check."""
    unchecked: str = ""
    """Why there was no check although the run asks for one. A reason that holds for the whole run is reported once per
    start only."""


@dataclass(frozen=True, kw_only=True)
class ResultRefused(Event):
    """Groups: this peer rejected a shard owner's result and does not apply it. RoundEnded or RoundMissed follows."""

    kind: ClassVar[str] = "result_refused"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id of the owner."""
    code: AnyCode
    """`implausible`: the values cannot be a mean of the contributions. `norm`, `not_finite` or `signature` also lower
    the owner's reputation."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class ContributorLeftOut(Event):
    """Groups: this peer owned a shard, and excluded a contribution from its mean because it points against the others.
    Reputation is not affected."""

    kind: ClassVar[str] = "contributor_left_out"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id of the contributor."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StandingLowered(Event):
    """A peer with a proven key committed an offence, so its reputation score rose. Repetitions within a minute are
    counted in one event."""

    kind: ClassVar[str] = "standing_lowered"
    peer: str
    """Peer id."""
    code: AnyCode
    reason: str
    score: float
    """The peer's score after this offence, as in `peer.protocol.policy.reputation`. It halves every five minutes."""
    out_s: float
    """Seconds for which the peer is neither chosen as a partner nor served. 0: it is not excluded."""
    times: int
    """Number of offences with this code that the event stands for."""


@dataclass(frozen=True, kw_only=True)
class CallerRefused(Event):
    """A caller without a proven key was refused. Repetitions within a minute are counted in one event."""

    kind: ClassVar[str] = "caller_refused"
    caller: str
    """Network address."""
    code: AnyCode
    reason: str
    times: int
    """Number of refusals with this code that the event stands for."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """`outer_params` were evaluated on the run's hold-out."""

    kind: ClassVar[str] = "evaluated"
    round: int
    loss: float
    """Mean loss, nats a token. NaN (null in the file) if it was not finite."""
    bits_per_byte: float
    own_loss: float = math.nan
    """Loss of the trainer's own `params`, measured at the end of the run only. NaN: not measured."""


@dataclass(frozen=True, kw_only=True)
class Checkpointed(Event):
    """A local checkpoint was written completely."""

    kind: ClassVar[str] = "checkpointed"
    round: int
    folder: str
    """Name of the folder."""
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ReceiptRefused(Event):
    """A partner's signature on the receipt of a swap is not valid. The receipt is discarded; the round itself
    counts."""

    kind: ClassVar[str] = "receipt_refused"
    peer: str
    """Peer id."""
    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written. The previous one is kept and training continues."""

    kind: ClassVar[str] = "checkpoint_failed"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Amended(Event):
    """This peer has received an amendment: the operator changes the run."""

    kind: ClassVar[str] = "amended"
    number: int
    round: int
    """The first round in which the amendment holds."""
    change: str
    """The change as a sentence."""


@dataclass(frozen=True, kw_only=True)
class AmendmentRefused(Event):
    """An amendment was rejected: its signature or contents are not valid, its number is out of order, or the operator
    signed two with the same number. Also written when a valid amendment could not be stored on disk."""

    kind: ClassVar[str] = "amendment_refused"
    peer: str
    """The sender. Empty: our own file."""
    code: AnyCode
    """`amendment` with the check that failed; `kept` or `not_kept` for our own file."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PaperHeld(Event):
    """This peer received a paper of the run's operator, and from now on forwards it to others."""

    kind: ClassVar[str] = "paper_held"
    paper: str
    """Its kind: `start`, `digest` or `delegation`."""
    by: str
    """Peer id of the signing key."""
    says: str
    """The contents as a sentence."""


@dataclass(frozen=True, kw_only=True)
class PaperRefused(Event):
    """A paper was rejected or dropped: it is not valid, it is a second start of the run, the operator revoked the
    delegation under which a node had signed it, or it could not be stored on disk."""

    kind: ClassVar[str] = "paper_refused"
    peer: str
    """The sender. Empty: our own file."""
    code: AnyCode
    """`paper` with the check that failed, `second_start`, `taken_back`; `kept` or `not_kept` for our own file."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """From this round on the peer neither trains nor exchanges."""

    kind: ClassVar[str] = "paused"
    round: int
    reason: str
    by: str = "operator"
    """`operator`; or `volunteer`: `peer pause`, quiet hours, or a condition of `peer join`."""


@dataclass(frozen=True, kw_only=True)
class Refounded(Event):
    """The run continues from another state, as an amendment of the operator demands. Outstanding work is dropped."""

    kind: ClassVar[str] = "refounded"
    round: int
    digest: str
    """Digest of the new state, hex."""


@dataclass(frozen=True, kw_only=True)
class WentOn(Event):
    """The pause has ended."""

    kind: ClassVar[str] = "went_on"
    round: int


@dataclass(frozen=True, kw_only=True)
class ReachabilityChanged(Event):
    """Other peers tested whether they can dial this one, and the result differs from the last one."""

    kind: ClassVar[str] = "reachability_changed"
    reachable: bool
    reason: str
    """The result of the probes, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class PortMappingChanged(Event):
    """The state of the port mapping at the router changed, or probes showed whether it works."""

    kind: ClassVar[str] = "port_mapping_changed"
    port: int
    """The mapped port of the router. 0: none."""
    reason: str
    """A sentence that quotes the router's answer."""


@dataclass(frozen=True, kw_only=True)
class KeyShared(Event):
    """Another running process has the same private key: the home was copied to a second machine."""

    kind: ClassVar[str] = "key_shared"
    since: float
    """When the other process started, seconds since the epoch by the other machine's clock."""
    stops: bool
    """Whether this process stops, because the other one started earlier. Otherwise the other one stops."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class RelayReserved(Event):
    """A relay reserved a place for this peer, which others cannot dial. They can call it through the relay."""

    kind: ClassVar[str] = "relay_reserved"
    relay: str
    """Peer id of the relay."""
    reason: str
    """Why this relay was chosen, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class RelayLeft(Event):
    """This peer stopped using a relay: the relay failed, the reservation ended, or there is a better one."""

    kind: ClassVar[str] = "relay_left"
    relay: str
    """Peer id of the relay."""
    reason: str
    """Why the relay is no longer used, as a sentence."""
    code: AnyCode = NO_CODE
    """A fault of the relay: `broken` (connections broke, or the bytes were not the peer's), `late` (relayed bytes were
    late or missing although the relay itself answers at once), `slow` (the relay itself answers late), `silent` (calls
    through it were lost) or `unreachable`. Without a fault: `ended` (the reservation ended), `surplus` (there is a
    better relay), `open` (others can dial this peer). Empty in journals of older versions."""


@dataclass(frozen=True, kw_only=True)
class DirectoryChanged(Event):
    """The number of other peers in the directory changed."""

    kind: ClassVar[str] = "directory_changed"
    peers: int
    """Live records in the directory, without our own."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PeerSuspected(Event):
    """A peer did not answer. It stays a candidate while other peers are asked whether they reach it."""

    kind: ClassVar[str] = "peer_suspected"
    peer: str
    """Peer id."""
    reason: str
    seconds: float
    """Always 0: the suspicion begins here."""


@dataclass(frozen=True, kw_only=True)
class PeerOut(Event):
    """A suspected peer is no longer a candidate: other peers do not reach it either, and its record was not renewed."""

    kind: ClassVar[str] = "peer_out"
    peer: str
    """Peer id."""
    reason: str
    seconds: float
    """Duration since the first suspicion."""


@dataclass(frozen=True, kw_only=True)
class PeerBack(Event):
    """A peer that was suspected or out made contact again, or other peers reach it."""

    kind: ClassVar[str] = "peer_back"
    peer: str
    """Peer id."""
    reason: str
    """The kind of contact, as a sentence."""
    seconds: float
    """Duration since the first suspicion."""


@dataclass(frozen=True, kw_only=True)
class Woke(Event):
    """The process continues after a time in which it did not run: the machine slept, or the process was stopped."""

    kind: ClassVar[str] = "woke"
    seconds: float
    suspended_s: float
    """The part of `seconds` in which the machine slept."""
    reason: str
    """Which of the two it was, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class ClockStepped(Event):
    """The machine's wall clock was set. Rounds follow a monotonic clock and do not move."""

    kind: ClassVar[str] = "clock_stepped"
    seconds: float
    """Size of the step; negative: back."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class HelperEnded(Event):
    """The directory's helper process (p2pd) ended, or could not be restarted. Training continues with the peers that
    are known."""

    kind: ClassVar[str] = "helper_ended"
    cause: str
    """Signal, exit code and last lines of output, or the limit that it exceeded, as a sentence."""
    times: int
    """Number of consecutive losses. After a while without a loss, counting begins again."""


@dataclass(frozen=True, kw_only=True)
class HelperBack(Event):
    """The helper process was restarted with the same identity."""

    kind: ClassVar[str] = "helper_back"
    seconds: float
    """Duration of the outage."""
    times: int
    """`times` of the preceding HelperEnded."""


@dataclass(frozen=True, kw_only=True)
class BudgetUsed(Event):
    """The upload budget of the day or month is too small for another exchange. From here on every round is solo."""

    kind: ClassVar[str] = "budget_used"
    reason: str
    """Which budget, and until when, as a sentence."""
    day: int
    """Bytes sent today."""
    month: int


@dataclass(frozen=True, kw_only=True)
class BudgetBack(Event):
    """The upload budget is large enough for exchanges again."""

    kind: ClassVar[str] = "budget_back"
    day: int
    """Bytes sent today."""
    month: int


@dataclass(frozen=True, kw_only=True)
class BudgetLost(Event):
    """The file with the upload counts could not be read. The peer assumes the amounts in `day` and `month` as already
    sent."""

    kind: ClassVar[str] = "budget_lost"
    reason: str
    day: int
    month: int


@dataclass(frozen=True, kw_only=True)
class Leaving(Event):
    """The peer drains: it begins no new round and no longer counts as live."""

    kind: ClassVar[str] = "leaving"
    reason: str
    announced_s: float = 0.0
    """Estimated seconds until the daemon ends."""
    parts: str = ""
    """What the estimate consists of, and the source of each part."""


@dataclass(frozen=True, kw_only=True)
class Left(Event):
    """The daemon ended in order. This is its last event."""

    kind: ClassVar[str] = "left"
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Carried(Event):
    """The totals over all earlier events. It begins a rotated file, and closes the gap after failed writes. A reader
    replaces its sums by these."""

    kind: ClassVar[str] = "totals"
    totals: dict[str, Any]
    """`Totals.to_json()`."""


KINDS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
