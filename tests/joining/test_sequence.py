"""The stages of a join must run in order, each once, and only as far as the user asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.errors import JoinRefused, RunEnded
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.joining.sequence import JoinSequence, Stage, fetch_terms, learn_terms, local_terms
from peer.membership.statement_sync import StatementSync
from peer.protocol.messages import PeerId, RunId
from peer.protocol.policy.amendments import Change
from peer.run.home import RunFolder
from peer.run.manifest import Manifest, SignedManifest, default_text, derive, parse_manifest
from peer.run.statements.log import StatementLog

RUN = RunId(b"r" * 32)
NOW = 1e9
Joining = JoinSequence[Any, Any, Any]


def steps(passed: list[Stage], *without: Stage) -> dict[str, Any]:
    """Return a step for every stage. It records its stage, and its value is the list of the stages before it."""

    def step(stage: Stage) -> Any:
        async def taken(joining: Joining) -> Any:
            passed.append(stage)
            await asyncio.sleep(0)
            behind = tuple(one for one in Stage if joining.has(one))
            return SignedManifest(default_text().encode(), b"") if stage is Stage.MANIFEST else behind

        return taken

    return {stage.name.lower(): step(stage) for stage in Stage if stage not in without}


def test_the_stages_come_in_order_and_once() -> None:
    passed = list[Stage]()
    joining = Joining(**steps(passed))
    asyncio.run(joining.run(until=Stage.TERMS))
    assert passed == [Stage.MANIFEST, Stage.TERMS]
    assert not joining.has(Stage.CONTRACT)
    asyncio.run(joining.run(until=Stage.TRAINER))
    assert passed == list(Stage)
    assert joining.ready == tuple(Stage)[:-1], "all values are there for the last step"
    asyncio.run(joining.run(until=Stage.FILES))
    assert passed == list(Stage), "what is behind is not done again"


def test_a_stage_without_a_step_is_passed_over() -> None:
    passed = list[Stage]()
    asyncio.run(Joining(**steps(passed, Stage.MANIFEST, Stage.CONTRACT, Stage.FILES)).run(until=Stage.TRAINER))
    assert passed == [Stage.TERMS, Stage.STATE, Stage.TRAINER]


@pytest.mark.parametrize("stage", list(Stage))
def test_a_join_can_be_left_in_every_stage(stage: Stage) -> None:
    """The stage under way stays incomplete, earlier stages stay complete, and no task remains."""

    async def main() -> None:
        passed, given = list[Stage](), dict[str, Any]()
        here, cleaned = asyncio.Event(), list[Stage]()

        async def waits(joining: Joining) -> None:
            try:
                here.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(stage)

        given = {**steps(passed), stage.name.lower(): waits}
        joining = Joining(**given)
        task = asyncio.create_task(joining.run(until=Stage.TRAINER))
        await here.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [stage]
        assert passed == [one for one in Stage if one < stage]
        assert [one for one in Stage if joining.has(one)] == passed
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_step_that_fails_is_taken_again() -> None:
    async def main() -> list[str]:
        tries = list[str]()

        async def terms(joining: Joining) -> Any:
            tries.append("terms")
            if len(tries) == 1:
                raise RunEnded("over")
            return None

        joining = Joining(**{**steps([]), "terms": terms})
        with pytest.raises(RunEnded):
            await joining.run(until=Stage.FILES)
        assert not joining.has(Stage.TERMS)
        await joining.run(until=Stage.FILES)
        return tries

    assert asyncio.run(main()) == ["terms", "terms"]


def context(folder: Path | None = None) -> JoinContext:
    """Return the context of a joiner with an empty directory."""

    async def peers() -> dict[PeerId, Any]:
        return {}

    async def at_once(seconds: float) -> None: ...

    directory: Any = SimpleNamespace(peers=peers, contact=lambda: SimpleNamespace(clock_offset_s=None))
    clock: Any = SimpleNamespace(now=lambda: NOW, sleep=at_once)
    return JoinContext(
        run_id=RUN,
        me=PeerId("me"),
        directory=directory,
        transport=SimpleNamespace(),  # type: ignore[arg-type]
        clock=clock,
        say=lambda line: None,
        folder=None if folder is None else RunFolder(folder),
    )


def manifest(*changes: str) -> Manifest:
    return parse_manifest(derive(default_text(), list(changes)).encode())


def statements(of: Manifest) -> StatementSync:
    return StatementSync(StatementLog.of(RUN, of, lambda: NOW), lambda event: None)


def test_a_run_that_is_over_ends_the_terms() -> None:
    over = manifest("start=1000.0", "train.total_rounds=3", "sync.sync_every=60")
    with pytest.raises(RunEnded):
        asyncio.run(learn_terms(context(), over, statements(over), ()))


def test_a_peer_that_the_operator_keeps_out_is_refused_with_the_terms() -> None:
    """A banned peer must be refused before it is asked to agree, and before it fetches a file."""
    operator, me = Identity.generate(), PeerId(Identity.generate().peer_id)
    of = manifest().model_copy(update={"operator": operator.peer_id})
    held = statements(of)
    held.log.amend(operator, 0, Change.BAN, "it lies", peer=me)
    with pytest.raises(JoinRefused, match="it lies"):
        asyncio.run(learn_terms(replace(context(), me=me), of, held, ()))


def test_the_terms_have_the_start_and_the_operators_nodes(tmp_path: Path) -> None:
    node = "12D3KooWGcHvVxGGEhRBGqvDzRFqsZZMnhqSMtx2QCGqNkkvB5dC"
    of = manifest()
    terms = local_terms(context(tmp_path), of, statements(of), [f"/ip4/192.0.2.7/tcp/4001/p2p/{node}"])
    assert terms.start == 0.0
    assert node in terms.nodes
    assert terms.admission.invitation is None


@pytest.mark.parametrize("wait_s", [3.0, 600.0])
def test_the_wait_for_a_donor_is_the_one_asked_for(wait_s: float) -> None:
    """`peer join --wait` limits the wait for a donor, whether or not the home already has the manifest."""
    of = manifest()
    terms = local_terms(context(), of, statements(of), ())

    async def weigh(params: Any, seed: int, within_s: float) -> str:
        return "not here"

    wanted = fetch_terms(
        context(), of, terms, proven=frozenset(), patience_s=wait_s, weigh=weigh, emit=lambda event: None
    )
    assert wanted.patience_s == wait_s
    assert wanted.knowledge.furthest() == 0, "nobody has shown the signed start"
