"""The composition root: builds one peer's parts around its ports, in one place and once.

The daemon, the simulator and the benchmarks all build their peers here, so that they differ in their ports alone. No
part is given anything later. What is made first breaks the one true circle: the ban list depends on the round at hand,
which is in `RoundStatus`."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from peer.aio.events import Shutdown
from peer.exchange.build import ExchangeContext, MakeStrategy, make_strategy
from peer.exchange.group.member import GroupMember
from peer.exchange.group.strategy import GroupStrategy
from peer.exchange.pair.acceptance import PartnerAcceptance
from peer.exchange.pair.context import PairContext, TrainerOutlook
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.strategy import PairStrategy
from peer.exchange.strategy import ExchangeControls, ExchangeStrategy
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.pair_receipts import PairReceipts
from peer.membership.parts import MembershipParts
from peer.membership.peer_table import PeerTable, lifetime
from peer.membership.receipt_log import ReceiptLog
from peer.membership.relay_words import RelayWords
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.membership.statement_sync import StatementSync
from peer.membership.suspend import SuspendRecovery, refresh
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.clock import Clock
from peer.ports.memory_store import ExchangeStores
from peer.ports.peer import PeerPorts
from peer.ports.receipt_store import ReceiptStore
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.pair.proven import ProvenPeers
from peer.protocol.pair.stranger_budget import StrangerBudget
from peer.protocol.schedule import RoundClock
from peer.protocol.swarm.suspend_detection import Reading, Slept
from peer.rounds.commit import RoundCommitter
from peer.rounds.directives import Directives
from peer.rounds.loop import Boundary, RoundLoop, RoundOutlets, RoundParts, RoundWork, no_boundary
from peer.rounds.pause import LocalPause
from peer.rounds.schedule import RoundSchedule
from peer.rounds.status import RoundStatus
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.costs import receipt_bounds
from peer.run.plan import RunPlan
from peer.run.statements.log import StatementLog

FetchReset = Callable[[bytes, list[PeerRecord]], Awaitable[Tensor | None]]
"""Gets the state with this digest from one of these peers; None: nobody gives it yet."""


class Quota(Protocol):
    """The volunteer's upload quota, as the rounds ask for it."""

    def why_not(self) -> str:
        """Why a round cannot be exchanged now, for a person; empty: it can."""

    async def watch(self) -> None:
        """Notice new days and quotas that are used; for ever, the owner cancels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerState:
    """The state that a peer begins its rounds with."""

    outer: OuterState
    receipts: ReceiptStore | None = None
    """Keeps the receipts of swaps; None: none are exchanged."""
    upto: Mapping[int, int] = field(default_factory=dict)
    """By fragment, the trainer's token count that earlier events of the journal already cover."""
    founded: bytes = b""
    """Digest of the state that `outer` goes back to, if the operator had refounded the run."""
    stores: ExchangeStores = field(default_factory=ExchangeStores)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPolicy:
    """The rules that one peer keeps to: the volunteer's, the operator's, and what others deserve."""

    pause: LocalPause
    quota: Quota
    reputation: Reputation
    statements: StatementSync
    invited: Container[PeerId] = ()
    """The peers that have an invitation, as far as they showed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTempo:
    """How often a peer looks about, and by which clocks and dice."""

    look_every_s: float
    """See `peer.membership.peer_table.pace`."""
    ask_every_s: float
    """Between two questions for amendments."""
    rng: random.Random
    doze: Callable[[float], Awaitable[None]]
    """Waits between two looks at suspected peers."""
    read_clocks: Callable[[], Reading] | None
    """Reads the clocks that show a sleep of this machine; None: it never sleeps, and nothing looks for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOutlets:
    """The ways out of a peer's parts to its owner."""

    emit: Callable[[events.Event], None]
    """Journals an event."""
    fetch_reset: FetchReset
    on_boundary: Boundary = no_boundary
    """Called between rounds, with the number of the next one."""
    on_rest: Boundary = no_boundary
    """Called when everything stands still for a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParts:
    """One peer's connected parts."""

    loop: RoundLoop
    members: MembershipParts
    matchmaker: Matchmaker
    strategy: ExchangeStrategy
    supervisor: TrainerSupervisor
    directives: Directives
    recovery: SuspendRecovery | None
    """None: this machine never sleeps."""
    background: Callable[[], list[Coroutine[Any, Any, None]]]
    """Makes the duties that run for ever beside the rounds; the owner cancels."""

    @property
    def view(self) -> PeerTable:
        return self.members.view

    @property
    def live(self) -> RoundStatus:
        return self.loop.live

    @property
    def acceptance(self) -> PartnerAcceptance | None:
        """Our judge of partners' params; None in other topologies than pairs."""
        return self.strategy.acceptance if isinstance(self.strategy, PairStrategy) else None

    @property
    def group(self) -> GroupMember | None:
        """Our part in a group, which answers the others; None in other topologies."""
        return self.strategy.group if isinstance(self.strategy, GroupStrategy) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetting:
    """The run's plan and this peer's own setting, before any part exists."""

    plan: RunPlan
    rounds: RoundClock
    live: RoundStatus
    own: OwnRecord
    tempo: PeerTempo
    make: MakeStrategy = make_strategy
    """Builds the topology."""


def assemble(
    setting: PeerSetting, ports: PeerPorts, state: PeerState, policy: LocalPolicy, outlets: PeerOutlets
) -> PeerParts:
    """Build a peer's parts. Nothing runs yet: the owner runs `loop` and `background`."""
    plan, live, emit, leaving = setting.plan, setting.live, outlets.emit, Shutdown()
    view = (members := _membership(setting, ports, state, policy, emit)).view
    proven, start = policy.reputation.proven, policy.statements.log.awaited_start
    schedule = RoundSchedule(setting.rounds, ports.clock, view, emit, live, proven, start)
    policy.reputation.limit_strangers(_stranger_budget(plan, setting.rounds, view), policy.invited)
    matchmaker = _matchmaker(plan, ports, members, schedule, policy)

    async def fetch_reset(digest: bytes) -> Tensor | None:
        return await outlets.fetch_reset(digest, list(view.peers.values()))

    directives = Directives(policy.statements.log.ruling, state.founded, fetch_reset, policy.pause)
    strategy = setting.make(
        ExchangeContext(
            plan=plan,
            outer=state.outer,
            ports=ports,
            members=members,
            matchmaker=matchmaker,
            stores=state.stores,
            emit=emit,
            wishes=_wishes(policy, live, ports.clock, leaving),
        )
    )
    supervisor = TrainerSupervisor(ports.trainer, state.outer, emit, leaving, state.upto)
    committer = RoundCommitter(ports.trainer, state.outer, emit, ports.offload, supervisor, live, plan, strategy)
    recovery = _recovery(setting, ports, view, emit, lambda slept: _woke(slept, schedule, committer))
    round_parts = RoundParts(
        plan=plan,
        clock=ports.clock,
        view=view,
        outer=state.outer,
        schedule=schedule,
        directives=directives,
        work=RoundWork(
            trainer=ports.trainer,
            supervisor=supervisor,
            strategy=strategy,
            committer=committer,
            diagnosis=members.diagnosis,
        ),
        outlets=_round_outlets(live, leaving, recovery, outlets),
    )
    return PeerParts(
        loop=RoundLoop(round_parts),
        members=members,
        matchmaker=matchmaker,
        strategy=strategy,
        supervisor=supervisor,
        directives=directives,
        recovery=recovery,
        background=lambda: _background(setting.tempo, ports, policy, members, recovery),
    )


def _wishes(policy: LocalPolicy, live: RoundStatus, clock: Clock, leaving: Shutdown) -> ExchangeControls:
    """What exchanges have to obey. A payload takes as long as the last one, as far as is known."""
    rest = policy.pause
    return ExchangeControls(
        wanted=lambda: not leaving and not rest.active.is_set(),
        why_not=policy.quota.why_not,
        tell=live.is_doing,
        exchange_fits=lambda ends_at: ends_at + live.last_seconds < clock.now() + rest.known_in(),
    )


def _membership(
    setting: PeerSetting, ports: PeerPorts, state: PeerState, policy: LocalPolicy, emit: Callable[[events.Event], None]
) -> MembershipParts:
    now, tempo, live = ports.clock.now, setting.tempo, setting.live
    watch = FailureDetector(now, lifetime(tempo.look_every_s), tempo.look_every_s, emit)
    view = PeerTable(
        ports.directory,
        ports.clock,
        tempo.rng,
        setting.own,
        watch,
        tempo.look_every_s,
        banned=lambda: policy.statements.log.ruling(live.round).kept_out,
        changed=lambda peers, reason: emit(events.DirectoryChanged(peers=peers, reason=reason)),
    )
    receipts = _receipts(setting.plan, ports, state, view, policy.reputation.proven, emit)
    return MembershipParts(view, policy.reputation, SlowPeerMonitor(now, emit), receipts)


def _receipts(
    plan: RunPlan,
    ports: PeerPorts,
    state: PeerState,
    view: PeerTable,
    proven: ProvenPeers,
    emit: Callable[[events.Event], None],
) -> PairReceipts | None:
    """Only partners in pairs sign each other's receipts."""
    if state.receipts is None or plan.method.topology != "pair":
        return None
    log = ReceiptLog(plan.run_id, plan.me, ports.signer, state.receipts, emit)
    bounds = receipt_bounds(plan.method, state.outer.layout.elements, plan.total_rounds)
    return PairReceipts(log, ports.transport, lambda: view.peers, emit, proven, bounds)


def _matchmaker(
    plan: RunPlan, ports: PeerPorts, members: MembershipParts, schedule: RoundSchedule, policy: LocalPolicy
) -> Matchmaker:
    around = PairContext(
        plan.run_id,
        plan.me,
        ports.transport,
        ports.clock,
        members.view,
        members.reputation,
        TrainerOutlook(
            schedule.trainer_eta,
            schedule.all_ready_in,
            lambda: schedule.in_steps or ports.trainer.counters().has_work,
        ),
        _vouched(plan, ports, members, policy.statements.log),
    )
    return Matchmaker(around, policy.quota.why_not)


def _vouched(
    plan: RunPlan, ports: PeerPorts, members: MembershipParts, log: StatementLog
) -> Callable[[PeerRecord], str]:
    def nodes() -> frozenset[PeerId]:
        return plan.nodes & log.nodes(ports.clock.now(), plan.nodes)

    words = RelayWords(nodes, ports.signer.verify, members.reputation)
    return lambda record: words.block_of(record, members.view.peers, ports.clock.now())


def _stranger_budget(plan: RunPlan, rounds: RoundClock, view: PeerTable) -> StrangerBudget:
    """Only where rounds have seconds and the trainer stands still for the result can strangers hold it up."""
    waits = rounds.kind == "seconds" and plan.method.waits
    return StrangerBudget(rounds.round_length if waits else None, view.watch.trips.usual)


def _woke(slept: Slept, schedule: RoundSchedule, committer: RoundCommitter) -> None:
    """Nothing ran here for a while. No work was done in the time that the machine slept through."""
    schedule.woke(slept)
    for fragment, at in committer.based_at.items():
        committer.based_at[fragment] = at + slept.suspended_s


def _recovery(
    setting: PeerSetting,
    ports: PeerPorts,
    view: PeerTable,
    emit: Callable[[events.Event], None],
    woke: Callable[[Slept], None],
) -> SuspendRecovery | None:
    read_clocks = setting.tempo.read_clocks
    if read_clocks is None:
        return None

    async def fresh() -> None:
        await refresh(ports.transport, ports.clock, view, setting.tempo.rng)

    return SuspendRecovery(fresh, emit, woke, read_clocks)


def _round_outlets(
    live: RoundStatus, leaving: Shutdown, recovery: SuspendRecovery | None, outlets: PeerOutlets
) -> RoundOutlets:
    return RoundOutlets(
        live=live,
        leaving=leaving,
        emit=outlets.emit,
        settled=_at_once if recovery is None else recovery.settled,
        on_boundary=outlets.on_boundary,
        on_rest=outlets.on_rest,
    )


async def _at_once() -> None:
    """Return at once."""


def _background(
    tempo: PeerTempo, ports: PeerPorts, policy: LocalPolicy, members: MembershipParts, recovery: SuspendRecovery | None
) -> list[Coroutine[Any, Any, None]]:
    view = members.view

    async def doze(seconds: float) -> None:
        await tempo.doze(seconds)

    def peers() -> Mapping[PeerId, PeerRecord]:
        return view.peers

    watch = view.watch
    duties = [
        view.run(),
        *policy.statements.asking(
            ports.transport, ports.clock, tempo.rng, view.known, tempo.ask_every_s, watch.answered
        ),
        watch.run(ports.transport, peers, tempo.rng, doze),
        policy.pause.watch(),
        policy.quota.watch(),
    ]
    if members.receipts is not None:
        duties.append(members.receipts.run())
    return duties if recovery is None else [*duties, recovery.run()]
