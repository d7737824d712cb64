"""The order in which a peer joins a run: manifest, terms, contract, files, state, trainer.

Every user of a join runs these stages: the daemon all of them, `peer doctor` and the commands that read a ticket only
the first ones, simulated machines those from the state on. For each stage a user supplies a step: an async function
that performs the stage and returns its value. The steps contain everything in which users differ: questions to the
person, reports of progress, folders, deadlines. They call the functions of this package for everything that users have
in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast

from peer.joining.clock import clock_from
from peer.joining.context import JoinContext
from peer.joining.ended import ensure_not_ended, operator_nodes
from peer.joining.fetch_terms import FetchTerms, RunKnowledge, Weigh
from peer.joining.invitation import OwnAdmission, invited_peers, own_invitation
from peer.joining.statements import ask_for_start
from peer.membership.statement_sync import StatementSync, ensure_admitted
from peer.methods.method import Method
from peer.observe import events
from peer.observe.status.value import ContractStatus
from peer.protocol.messages import PeerId
from peer.protocol.policy.donors import live_round
from peer.protocol.swarm.claimed_round import furthest_round
from peer.run.manifest import Manifest, SignedManifest
from peer.run.resolve import resolve
from peer.run.statements.files import known_start


class Stage(IntEnum):
    """The stages of a join, in order."""

    MANIFEST = 1
    """The run's signed manifest has been obtained."""
    TERMS = 2
    """The operator's statements are known: the run has not ended, and it admits this peer."""
    CONTRACT = 3
    """The volunteer agreed to the contract."""
    FILES = 4
    """The run's files have been obtained, so that its layout is known."""
    STATE = 5
    """A complete state has been obtained."""
    TRAINER = 6
    """The trainer has started from that state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTerms:
    """The terms of a run: the operator's signed statements, and the rule of admission."""

    statements: StatementSync
    nodes: frozenset[PeerId]
    """The operator's nodes, as the manifest and the ticket name them."""
    admission: OwnAdmission
    folder: Path | None = None
    """The run's folder in the home. None: nothing is stored."""

    @property
    def start(self) -> float:
        """Start of round 0, seconds since the epoch. 0: no signed statement gives it yet."""
        return known_start(self.statements.log, self.folder)


Files = TypeVar("Files")
State = TypeVar("State")
Ready = TypeVar("Ready")
Value = TypeVar("Value")
Step: TypeAlias = Callable[["JoinSequence[Files, State, Ready]"], Awaitable[Value]]


class JoinSequence(Generic[Files, State, Ready]):
    """One join: the user's steps, and the values of the completed stages.

    Values are frozen. `Files`, `State` and `Ready` are the types that the last three steps return."""

    def __init__(
        self,
        *,
        manifest: Step[Files, State, Ready, SignedManifest] | None = None,
        terms: Step[Files, State, Ready, JoinTerms] | None = None,
        contract: Step[Files, State, Ready, ContractStatus] | None = None,
        files: Step[Files, State, Ready, Files] | None = None,
        state: Step[Files, State, Ready, State] | None = None,
        trainer: Step[Files, State, Ready, Ready] | None = None,
    ) -> None:
        """Each argument is the step of one stage. A stage without a step is skipped."""
        steps = (manifest, terms, contract, files, state, trainer)
        self._steps = {stage: step for stage, step in zip(Stage, steps, strict=True) if step is not None}
        self._values: dict[Stage, Any] = {}

    async def run(self, until: Stage) -> Self:
        """Run the stages that are not complete yet, up to and including `until`. Return self.

        A step that fails or is cancelled leaves its stage incomplete, and a later call runs it again."""
        for stage, step in self._steps.items():
            if stage <= until and stage not in self._values:
                self._values[stage] = await step(self)
        return self

    def has(self, stage: Stage) -> bool:
        """Return whether a stage is complete."""
        return stage in self._values

    @property
    def signed(self) -> SignedManifest:
        return cast(SignedManifest, self._values[Stage.MANIFEST])

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    @property
    def method(self) -> Method:
        return resolve(self.manifest.sync)

    @property
    def terms(self) -> JoinTerms:
        return cast(JoinTerms, self._values[Stage.TERMS])

    @property
    def contract(self) -> ContractStatus:
        return cast(ContractStatus, self._values[Stage.CONTRACT])

    @property
    def files(self) -> Files:
        return cast(Files, self._values[Stage.FILES])

    @property
    def state(self) -> State:
        return cast(State, self._values[Stage.STATE])

    @property
    def ready(self) -> Ready:
        return cast(Ready, self._values[Stage.TRAINER])


async def learn_terms(
    context: JoinContext, manifest: Manifest, statements: StatementSync, addresses: Sequence[str]
) -> JoinTerms:
    """Fetch the operator's statements from peers of the run. `addresses`: those of the ticket.

    Raises RunEnded, and JoinRefused when the operator has banned this peer."""
    await ensure_not_ended(context, manifest, addresses, statements)
    records = (await context.directory.peers()).values()
    ensure_admitted(statements.log.policy(live_round(records) or 0), context.me)
    return local_terms(context, manifest, statements, addresses)


def local_terms(
    context: JoinContext, manifest: Manifest, statements: StatementSync, addresses: Sequence[str]
) -> JoinTerms:
    """Return the terms by the statements that are held here, without asking peers."""
    nodes, folder = operator_nodes(manifest, addresses), None if context.folder is None else context.folder.path
    own = None if folder is None else own_invitation(folder, None, context.run_id, context.me, context.clock.now())
    rule = invited_peers(manifest, statements.log, context.clock.now, nodes)
    return JoinTerms(
        statements=statements,
        nodes=nodes,
        admission=OwnAdmission(rule, context.me, own),
        folder=folder,
    )


def fetch_terms(
    context: JoinContext,
    manifest: Manifest,
    terms: JoinTerms,
    *,
    proven: frozenset[PeerId],
    patience_s: float,
    weigh: Weigh,
    emit: Callable[[events.Event], None],
) -> FetchTerms:
    """Return the requirements for the state that a peer begins with.

    While a run waits for a signed start, its round is taken as 0."""
    log, now = terms.statements.log, context.clock.now

    def furthest() -> int | None:
        most = furthest_round(clock_from(manifest, terms.start), now())
        return 0 if most is None and log.wants_start else most

    knowledge = RunKnowledge(
        proven=proven,
        nodes=log.nodes(now(), terms.nodes),
        furthest=furthest,
        digests=lambda: log.digests(now()),
        ask_start=partial(ask_for_start, context, terms.statements),
    )
    momentum = resolve(manifest.sync).one_state
    return FetchTerms(momentum=momentum, patience_s=patience_s, weigh=weigh, emit=emit, knowledge=knowledge)
