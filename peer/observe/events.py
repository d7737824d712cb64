"""The typed events of a peer: a list, one class a kind. The journal keeps them, and metrics, views and reports are made
from them.

Every field is flat and JSON-able. A field may be added with a default. A field or kind never gets a new meaning."""

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
    """The base of all events. `kind` names one in the journal."""

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
    """The source of the state, as a sentence: resumed or fetched, and from where."""


@dataclass(frozen=True, kw_only=True)
class StateFetched(Event):
    """The state of a donor is here, complete and verified."""

    kind: ClassVar[str] = "state_fetched"
    donor: str
    """Peer id."""
    round: int
    """The round the donor worked in."""
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StateRefused(Event):
    """A state that came is not begun with: it failed when the trainer weighed it."""

    kind: ClassVar[str] = "state_refused"
    donor: str
    """Peer id; of a state that several gave, how many."""
    round: int
    """The round that its donor named, of several the first."""
    reason: str
    """With the numbers, for a person."""


@dataclass(frozen=True, kw_only=True)
class TrainerStarted(Event):
    """The trainer process is ready, for the first time or again."""

    kind: ClassVar[str] = "trainer_started"
    device: str
    reason: str
    """Why this device and precision."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Event):
    """The split of an inner step's batch that fits into memory."""

    kind: ClassVar[str] = "micro_batch"
    windows: int
    """That go through the model at once."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Joined(Event):
    """The first inner step of this start is done."""

    kind: ClassVar[str] = "joined"
    seconds: float
    """Since the command began, without `waited_for_person`: the sum of the phases from `program` to `first_step`, of
    `terms` and of `files`."""
    program: float
    """Loading it."""
    network: float
    """Listening, starting the DHT helper, reaching somebody."""
    manifest: float
    amendments: float
    """Asking others for them."""
    state: float
    clock: float
    trainer: float
    """Waiting for it, when all else was there."""
    others: float
    """Waiting until the run begins, or for enough peers."""
    first_evaluation: float
    first_step: float
    torch_import: float = 0.0
    """In the trainer's process, at the same time as the fields above, as are the fields below."""
    waiting_for_the_state: float = 0.0
    data: float = 0.0
    model: float = 0.0
    terms: float = 0.0
    """Working out the terms, and looking through the volunteer's own texts. It comes after `manifest`."""
    files: float = 0.0
    """Fetching the run's files, and preparing the trainer's process. It comes after `terms`."""
    waited_for_person: float = 0.0
    """Seconds at a question, or until the line was unmetered. In none of the above."""


@dataclass(frozen=True, kw_only=True)
class Unfit(Event):
    """This machine or its link is too slow to take part in every round as it should."""

    kind: ClassVar[str] = "unfit"
    reason: str
    """With the numbers, for a person."""


@dataclass(frozen=True, kw_only=True)
class TrainerDeath(Event):
    """The trainer process ended by itself or was killed."""

    kind: ClassVar[str] = "trainer_died"
    cause: str
    """Signal, exit code or exception, for a person."""


@dataclass(frozen=True, kw_only=True)
class TrainingBegan(Event):
    """The peer counts as live from here."""

    kind: ClassVar[str] = "training_began"
    round: int
    """The first one it will take part in."""


@dataclass(frozen=True, kw_only=True)
class RoundDue(Event):
    """A round is due for this peer. One of RoundEnded and RoundMissed follows."""

    kind: ClassVar[str] = "round_due"
    round: int
    fragment: int
    """Index into the layout."""
    deadline: float
    """Seconds since the epoch, run clock."""


@dataclass(frozen=True, kw_only=True)
class RoundEnded(Event):
    """An outer step was made. Written before the trainer's base counter moves to `upto` (write-ahead)."""

    kind: ClassVar[str] = "round_ended"
    round: int
    fragment: int
    """Index into the layout."""
    outcome: Outcome
    partner: str
    """Peer ids of the partners, with spaces between. Empty unless exchanged."""
    reason: str
    """Why it was not exchanged, as a sentence. Empty when it was."""
    applied: int
    """Work that entered the outer step, tokens x elements of the fragment."""
    dropped: int
    """Work that was cut off, tokens x elements of the fragment."""
    upto: int
    """The trainer's token counter that is covered by this, tokens."""
    steps: int
    """Inner steps since the fragment's base."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Seconds of the transfer."""
    digest: str = ""
    """In groups: of the fragment's state from now on, the same on every member."""
    ready_at: float = 0.0
    """Pairs that exchanged: when our work was done, run time, as all times here. 0: not known, as below."""
    partner_ready_at: float = 0.0
    """The partner's own statement."""
    first_byte_at: float = 0.0
    done_at: float = 0.0
    rate_sent: float = 0.0
    """Bytes per second between the first byte and the last."""
    rate_received: float = 0.0
    data_from: str = ""
    """Place in the peer's data where this work begins: `epoch.place.window`. Empty: not known."""
    data_to: str = ""
    """Place of the batch after it."""
    data_skipped: str = ""
    """Shards passed over between the two, as `peer.protocol.data_span` writes them."""
    path: str = ""
    """How the bytes came here: `direct`, `mapped`, `punched` or `relayed`. Empty unless exchanged. In a journal of a
    program that knew only direct paths it is empty too."""
    path_via: str = ""
    """Peer id of the relay that spliced, or that introduced the two. Empty: there was none."""
    path_why: str = ""
    """Why it was this path, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class ShardSkipped(Event):
    """A shard of the run's data was not to be had and was passed over."""

    kind: ClassVar[str] = "shard_skipped"
    epoch: int
    place: int
    """In this peer's order of the epoch."""
    shard: int
    """Number in the data index."""
    digest: str
    """Hex."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Dropped(Event):
    """Work that no outer step will see."""

    kind: ClassVar[str] = "dropped"
    fragment: int
    """Index into the layout."""
    dropped: int
    """Tokens x elements of the fragment."""
    upto: int
    """The trainer's token counter that is covered by this, tokens."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class DiagnosisChanged(Event):
    """Something slow or stuck was found, or is over. See `peer.protocol.diagnosis.analysis`."""

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
    """False: it is over."""


@dataclass(frozen=True, kw_only=True)
class RoundMissed(Event):
    """No outcome by the deadline."""

    kind: ClassVar[str] = "round_missed"
    round: int
    fragment: int
    """Index into the layout."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class SatOut(Event):
    """A round without one inner step done for it. The work is carried over."""

    kind: ClassVar[str] = "sat_out"
    round: int
    fragment: int
    """Index into the layout."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class CaughtUp(Event):
    """A fragment's state was fetched from the group outside of a round. That happens when a round or a part of it was
    missed: before the first round, after the last, or during training."""

    kind: ClassVar[str] = "caught_up"
    round: int
    """The one that comes next."""
    fragment: int
    """Index into the layout."""
    bytes: int
    peer: str
    """Peer id of who gave it."""
    digest: str
    """Hex, of the fragment's state from now on, the same on every member."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Skipped(Event):
    """The peer jumped over rounds."""

    kind: ClassVar[str] = "skipped"
    from_round: int
    """The first one skipped."""
    to_round: int
    """The first one not skipped."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PartnerFailed(Event):
    """An exchange with a locked partner failed. The round continues."""

    kind: ClassVar[str] = "partner_failed"
    peer: str
    """Peer id."""
    round: int
    code: AnyCode
    """`lost`, `late`, `silent`, `path` where a relay was gone, or the code of the refusal or of what was wrong with its
    bytes."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PartnerLetGo(Event):
    """This peer pauses or leaves, and let a locked partner go before a byte was sent. The partner looks for another."""

    kind: ClassVar[str] = "partner_let_go"
    peer: str
    """Peer id."""
    round: int
    heard: bool
    """Whether the partner was told in time. Else it learns that when it asks."""


@dataclass(frozen=True, kw_only=True)
class PartnerJudged(Event):
    """A partner's params are judged. RoundEnded follows."""

    kind: ClassVar[str] = "partner_judged"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id."""
    verdict: str
    """`taken`, `clipped` or `refused`. `clipped`: only a part of the way from our params to the partner's was gone."""
    reason: str
    """Why it was not taken whole, for a person. Empty when it was."""
    work: float
    """L2 norm of our own work that was sent."""
    distance: float
    """L2 norm of the difference between the partner's params and ours."""
    radius: float
    """The largest distance that is taken."""
    gained: float = math.nan
    """Nats a token that our own work gained in the check. NaN: it was not checked, as below."""
    lost: float = math.nan
    """Nats a token by which the mean with the partner was worse than our own params."""
    limit: float = math.nan
    """The most that it may be worse by."""
    windows: str = ""
    """The windows that it was checked on: how many, and where they are from. Empty: it was not checked."""
    unchecked: str = ""
    """Why it was not checked, where the run asks for it. What holds for the run is told once a start."""


@dataclass(frozen=True, kw_only=True)
class ResultRefused(Event):
    """In groups: an owner gave a result of its shard that is not applied here. RoundEnded or RoundMissed follows."""

    kind: ClassVar[str] = "result_refused"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id of the owner."""
    code: AnyCode
    """`implausible`: it cannot be a mean. `norm`, `not_finite` or `signature`: the owner's standing falls, too."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class ContributorLeftOut(Event):
    """In groups: this peer owned a shard, and left a contributor out of its mean, as its work points against that of
    the others. Nobody's standing falls."""

    kind: ClassVar[str] = "contributor_left_out"
    round: int
    fragment: int
    """Index into the layout."""
    peer: str
    """Peer id of the contributor."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class StandingLowered(Event):
    """A peer that proved its key did something wrong. Repeats within a minute are counted, not written one by one."""

    kind: ClassVar[str] = "standing_lowered"
    peer: str
    """Peer id."""
    code: AnyCode
    reason: str
    score: float
    """Score of `peer.protocol.policy.reputation` after this offence. It halves every five minutes."""
    out_s: float
    """Seconds for which it is no partner and nothing is served to it. 0: none."""
    times: int
    """Offences of this code that this line stands for."""


@dataclass(frozen=True, kw_only=True)
class CallerRefused(Event):
    """A caller that proved no key was refused. Repeats within a minute are counted, not written one by one."""

    kind: ClassVar[str] = "caller_refused"
    caller: str
    """Address."""
    code: AnyCode
    reason: str
    times: int
    """Refusals of this code that this line stands for."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """An evaluation of `outer_params` on the run's hold-out."""

    kind: ClassVar[str] = "evaluated"
    round: int
    loss: float
    """Mean nats a token. NaN is written as null."""
    bits_per_byte: float
    own_loss: float = math.nan
    """Loss of the trainer's own `params`, measured at the end of the run, else NaN."""


@dataclass(frozen=True, kw_only=True)
class Checkpointed(Event):
    """A local checkpoint is complete on disk."""

    kind: ClassVar[str] = "checkpointed"
    round: int
    folder: str
    """Name of the folder."""
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ReceiptRefused(Event):
    """A partner's signature under a swap does not hold. The round is not touched, its receipt is not kept."""

    kind: ClassVar[str] = "receipt_refused"
    peer: str
    """Peer id."""
    round: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """No checkpoint was written. The former one is kept and training continues."""

    kind: ClassVar[str] = "checkpoint_failed"
    reason: str


@dataclass(frozen=True, kw_only=True)
class Amended(Event):
    """The operator changed the run, and this peer knows it from now on."""

    kind: ClassVar[str] = "amended"
    number: int
    round: int
    """From this round on it holds."""
    change: str
    """The change as a sentence."""


@dataclass(frozen=True, kw_only=True)
class AmendmentRefused(Event):
    """A peer sent an amendment that does not check, is out of order, or is one of two that the operator signed under
    one number. Or a valid one could not be kept on disk."""

    kind: ClassVar[str] = "amendment_refused"
    peer: str
    """The peer that sent it. Empty: our own file."""
    code: AnyCode
    """`amendment` and what did not check of it, `kept` or `not_kept` for our own file."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PaperHeld(Event):
    """A paper of the run's operator is known here from now on, and handed on."""

    kind: ClassVar[str] = "paper_held"
    paper: str
    """Its kind: `start`, `digest` or `delegation`."""
    by: str
    """Peer id of the key that signed it."""
    says: str
    """What it says, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class PaperRefused(Event):
    """A peer sent a paper that does not check, or one of two starts that the operator signed. Or the operator took back
    what let a node sign one that was held here. Or a valid one could not be kept on disk."""

    kind: ClassVar[str] = "paper_refused"
    peer: str
    """The peer that sent it. Empty: our own file."""
    code: AnyCode
    """`paper` and what did not check of it, `second_start`, `taken_back`, `kept` or `not_kept` for our own file."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Paused(Event):
    """No training and no exchange from this round on."""

    kind: ClassVar[str] = "paused"
    round: int
    reason: str
    by: str = "operator"
    """Or `volunteer`: `peer pause`, quiet hours and the conditions of `peer join`."""


@dataclass(frozen=True, kw_only=True)
class Refounded(Event):
    """The run continues from another state, by the operator's amendment. Outstanding work is dropped."""

    kind: ClassVar[str] = "refounded"
    round: int
    digest: str
    """Hex, of the state."""


@dataclass(frozen=True, kw_only=True)
class WentOn(Event):
    """The pause is over."""

    kind: ClassVar[str] = "went_on"
    round: int


@dataclass(frozen=True, kw_only=True)
class ReachabilityChanged(Event):
    """Others tried to dial this peer, and their answer is a new one."""

    kind: ClassVar[str] = "reachability_changed"
    reachable: bool
    reason: str
    """The probers' finding, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class PortMappingChanged(Event):
    """The router said something new of the port that it is asked to open, or others found what it is worth."""

    kind: ClassVar[str] = "port_mapping_changed"
    port: int
    """The router's port that is held. 0: none."""
    reason: str
    """A sentence, with the router's words."""


@dataclass(frozen=True, kw_only=True)
class KeyShared(Event):
    """Another process was proven to run with our key: somebody has copied the home to another machine."""

    kind: ClassVar[str] = "key_shared"
    since: float
    """Seconds since the epoch, by the other machine's clock: when the other process began."""
    stops: bool
    """Whether it began earlier, so that this process stops. Else the other one does."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class RelayReserved(Event):
    """A relay holds a place for this peer, which nobody can dial. Others can call it over that relay."""

    kind: ClassVar[str] = "relay_reserved"
    relay: str
    """Its peer id."""
    reason: str
    """Why it was chosen, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class RelayLeft(Event):
    """A relay is used no more: it failed, its place was lost, or there is a better one."""

    kind: ClassVar[str] = "relay_left"
    relay: str
    """Its peer id."""
    reason: str
    """Why, as a sentence."""
    code: AnyCode = NO_CODE
    """What it did: `broken` (what passed it broke off, or did not come from the peer), `late` (it came late or not at
    all, although the relay itself answers at once), `slow` (the relay itself answers late), `silent` (calls over it
    were lost) or `unreachable`. Where it did nothing wrong: `ended` (our place ended), `surplus` (there is a better
    one), `open` (others can dial us). Empty in a journal of an older program."""


@dataclass(frozen=True, kw_only=True)
class DirectoryChanged(Event):
    """Others came or went."""

    kind: ClassVar[str] = "directory_changed"
    peers: int
    """Live records but our own."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PeerSuspected(Event):
    """A peer did not answer us. It stays a candidate while others are asked whether they reach it."""

    kind: ClassVar[str] = "peer_suspected"
    peer: str
    """Peer id."""
    reason: str
    seconds: float
    """0: it begins here."""


@dataclass(frozen=True, kw_only=True)
class PeerOut(Event):
    """A suspected peer is no candidate any more: others do not reach it either, and it did not announce itself."""

    kind: ClassVar[str] = "peer_out"
    peer: str
    """Peer id."""
    reason: str
    seconds: float
    """Since it was first suspected."""


@dataclass(frozen=True, kw_only=True)
class PeerBack(Event):
    """A peer that was suspected or out made contact again, or others reach it."""

    kind: ClassVar[str] = "peer_back"
    peer: str
    """Peer id."""
    reason: str
    """The contact, as a sentence."""
    seconds: float
    """Since it was first suspected."""


@dataclass(frozen=True, kw_only=True)
class Woke(Event):
    """The end of a span in which nothing ran here: the machine slept, or the process was stopped."""

    kind: ClassVar[str] = "woke"
    seconds: float
    suspended_s: float
    """Seconds of these in which the machine slept."""
    reason: str
    """The reason as a sentence."""


@dataclass(frozen=True, kw_only=True)
class ClockStepped(Event):
    """Somebody set this machine's clock. Rounds go by another one and are not moved."""

    kind: ClassVar[str] = "clock_stepped"
    seconds: float
    """Forward, negative: back."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class HelperEnded(Event):
    """The directory's helper process (p2pd) is gone, or could not be started again. Training continues with the known
    peers."""

    kind: ClassVar[str] = "helper_ended"
    cause: str
    """Signal, exit code, last lines of output, or the bound it broke, as a sentence."""
    times: int
    """Number of losses in a row. A while without loss begins a new row."""


@dataclass(frozen=True, kw_only=True)
class HelperBack(Event):
    """The helper process runs again, with the same identity."""

    kind: ClassVar[str] = "helper_back"
    seconds: float
    """Since it was gone."""
    times: int
    """`times` of the HelperEnded before."""


@dataclass(frozen=True, kw_only=True)
class BudgetUsed(Event):
    """The volunteer's upload of a day or a month does not hold another exchange: from here on every round is solo."""

    kind: ClassVar[str] = "budget_used"
    reason: str
    """Which, and until when, for a person."""
    day: int
    """Bytes sent today."""
    month: int


@dataclass(frozen=True, kw_only=True)
class BudgetBack(Event):
    """The upload budget holds exchanges again."""

    kind: ClassVar[str] = "budget_back"
    day: int
    """Bytes sent today."""
    month: int


@dataclass(frozen=True, kw_only=True)
class BudgetLost(Event):
    """The file that counts uploads could not be read. So much is taken for used instead."""

    kind: ClassVar[str] = "budget_lost"
    reason: str
    day: int
    month: int


@dataclass(frozen=True, kw_only=True)
class Leaving(Event):
    """Draining: no new round begins. The peer no longer counts as live."""

    kind: ClassVar[str] = "leaving"
    reason: str
    announced_s: float = 0.0
    """Seconds that the peer says leaving will take."""
    parts: str = ""
    """How these seconds are made up, and how each part is known."""


@dataclass(frozen=True, kw_only=True)
class Left(Event):
    """The last event of a daemon that ended in order."""

    kind: ClassVar[str] = "left"
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Carried(Event):
    """The sum over all events before this one. It begins a rotated file, and mends a gap after failed writes. Folding
    it replaces the sums so far."""

    kind: ClassVar[str] = "totals"
    totals: dict[str, Any]
    """`Totals.to_json()`."""


KINDS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
