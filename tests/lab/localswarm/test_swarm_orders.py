"""`peer swarm`: orders that were not carried out are listed, and change the exit code."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.swarm import command
from peer.errors import PeerError, UsageError
from peer.lab.localswarm import run
from peer.lab.localswarm.plan import derive_manifest
from peer.lab.localswarm.processes import Daemon
from peer.lab.localswarm.report import PeerAccount
from peer.observe.events import Event, RoundMissed, TrainingBegan
from peer.observe.totals import Ledger
from peer.run.manifest import default_text, parse_manifest

ENDS, STAYS = ("true",), ("cat",)  # `cat` ends with its standard input, or with us
LAST = RoundMissed(round=3, fragment=0, reason="test")
TICKET = "/ip4/127.0.0.1/tcp/7/p2p/12D3KooWB9K64eNs5zrjcgEnb48PeEoqmS6ygxBizwbpmdRWG3mQ"

Swarm = Callable[..., tuple[int, dict[str, str | None], str]]


@pytest.fixture
def swarm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Swarm:
    """Returns a function that runs `peer swarm`, where each peer is a plain program without a network.

    Its arguments: options of the command, `p1=ENDS` for the program of peer 1, and `events` for the journal of each
    peer. It returns the exit code, for each order the reason why it was not carried out, and the output."""
    programs: dict[int, tuple[str, ...]] = {}
    ended: list[Event] = []
    began: dict[str, float] = {}

    async def bootstrap(*arguments: Any) -> str:
        return TICKET

    async def start(daemon: Daemon, ticket: str, **options: Any) -> None:
        daemon.home.mkdir(parents=True, exist_ok=True)
        program = programs[int(daemon.name.rpartition(" ")[2])]
        began[daemon.name] = time.time()
        await asyncio.sleep(0.06)  # it trains before the start returns, and before the rounded time of its order
        daemon.process = await asyncio.create_subprocess_exec(*program, stdin=asyncio.subprocess.PIPE)

    async def at_once(self: run.Swarm) -> None: ...

    def account(daemon: Daemon, peer_id: str, killed_at: float | None, *rest: Any) -> PeerAccount:
        counts = dict.fromkeys(("due", "paired", "solo", "refused", "failed"), 0)
        row = {"peer_id": peer_id, "exit_code": daemon.exit_codes[-1], "killed": killed_at is not None, "steps": 0}
        row |= {"rounds": counts, "tokens": 0, "bytes_sent": 0, "seconds_training": 0.0, "seconds_waiting": 0.0}
        row |= dict.fromkeys(("val_loss_first", "val_loss_last", "val_loss_round"))
        return PeerAccount(row, Ledger(0, 0, 0, 0), [(began[daemon.name], event) for event in ended], None, killed_at)

    monkeypatch.setattr(run, "start_bootstrap", bootstrap)
    monkeypatch.setattr(run, "start_peer", start)
    monkeypatch.setattr(run, "account", account)
    monkeypatch.setattr(run.Swarm, "_until_training", at_once)

    def play(*options: str, events: tuple[Event, ...] = (LAST,), **peers: tuple[str, ...]) -> Any:
        programs.update({int(name.removeprefix("p")): program for name, program in peers.items()})
        ended.extend(events)
        report, code = tmp_path / "report.json", 0
        given = ["--peers", "2", "--report", str(report), "--home", str(tmp_path / "home"), *options]
        output = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("peer.cli.swarm.echo", output.append)
            try:
                CliRunner().invoke(command, given, catch_exceptions=False)
            except PeerError as error:
                code = error.exit_code
        orders = json.loads(report.read_text()).get("orders", [])
        return code, {order["order"]: order["why_not"] for order in orders}, "\n".join(output)

    return play


def test_a_kill_and_a_join_after_the_end_are_listed(swarm: Swarm) -> None:
    code, orders, output = swarm("--rounds", "4", "--kill", "2@45", "--join", "3@60", p1=ENDS, p2=ENDS)
    assert code == 61
    assert orders["the run's 4 rounds"] is None
    for order in ("--kill 2@45", "--join 3@60"):
        assert "all peers had ended after 0 s: the run has 4 rounds" in (orders[order] or "")
        assert f"  {order}: all peers had ended" in output


def test_what_was_carried_out_is_no_failure(swarm: Swarm) -> None:
    events = (TrainingBegan(round=0), LAST)
    code, orders, output = swarm(
        "--rounds", "4", "--kill", "2@0", "--join", "3@0", p1=ENDS, p2=STAYS, p3=ENDS, events=events
    )
    assert (code, set(orders.values())) == (0, {None})
    assert "not carried out" not in output


def test_a_kill_that_meets_a_dead_peer_is_listed(swarm: Swarm) -> None:
    _, orders, _ = swarm("--rounds", "4", "--kill", "1@0", "--kill", "1@0.01", p1=STAYS, p2=ENDS)
    assert orders["--kill 1@0"] is None
    assert orders["--kill 1@0.01"] == "peer 1 had ended already"


def test_a_newcomer_that_never_trains_has_not_joined(swarm: Swarm) -> None:
    code, orders, _ = swarm("--rounds", "4", "--join", "3@0", "--kill", "2@0.5", p1=ENDS, p2=STAYS, p3=ENDS)
    assert (code, "did not begin to train" in (orders["--join 3@0"] or "")) == (61, True)


def test_rounds_that_were_not_played_are_listed(swarm: Swarm) -> None:
    code, orders, _ = swarm("--rounds", "9", p1=ENDS, p2=ENDS)
    assert (code, list(orders)) == (61, ["the run's 9 rounds"])


def test_minutes_that_the_rounds_do_not_fill_are_listed(swarm: Swarm) -> None:
    steps = ("--set", "sync.clock=steps", "--set", "train.total_rounds=4")
    code, orders, _ = swarm("--minutes", "3", *steps, p1=ENDS, p2=ENDS)
    assert (code, orders["--minutes 3"]) == (61, "all peers had ended after 0 s: the run has 4 rounds")


def test_a_liar_that_sent_nothing_is_listed(swarm: Swarm) -> None:
    code, orders, _ = swarm("--rounds", "4", "--attack", "2@negate", p1=ENDS, p2=ENDS)
    assert (code, orders["--attack 2@negate"]) == (61, "peer 2 sent nothing to a partner")


def test_minutes_alone_give_rounds_that_fill_them() -> None:
    more = {"preset": None, "settings": (), "rounds": None, "steps": None, "seed": None, "own_default": True}
    manifest = parse_manifest(derive_manifest(default_text(), minutes=3.0, **more).encode())
    assert manifest.train.total_rounds * manifest.sync.sync_every == 180
    assert manifest.sync.clock == "seconds"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--kill", "9@1"], "no peer 9"),
        (["--kill", "3@1", "--join", "3@2"], "no peer 3 then"),
        (["--minutes", "1", "--kill", "2@60"], "after the end"),
        (["--join", "2@1"], "nobody kills it"),
        (["--join", "4@1"], "newcomers 4"),
        (["--throttle", "3@0.5"], "no peer 3"),
        (["--throttle", "2@2"], "no part"),
        (["--attack", "2@donor"], "nobody joins"),
        (["--chaos", "all", "--minutes", "0.2"], "no fault"),
        (["--report", "/nowhere/report.json"], "--report"),
    ],
)
def test_what_could_never_happen_is_refused_before_anything_starts(options: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        CliRunner().invoke(command, ["--peers", "2", *options], catch_exceptions=False)
