"""`peer swarm --attack`: which real daemons lie, and the command lines of their processes."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.swarm import command
from peer.errors import UsageError
from peer.exchange.build import make_strategy
from peer.lab.attack.liar import DONORS_AHEAD
from peer.lab.attack.lies import DONOR
from peer.lab.attack.process import read
from peer.lab.attack.report import AttackReport, Excluded, Newcomer
from peer.lab.localswarm.plan import PeerSetups, SwarmPlan, attacks_of
from peer.lab.localswarm.processes import LOOPBACK
from peer.lab.localswarm.report import table
from peer.lab.localswarm.run import Swarm
from peer.node.compose import DaemonParts
from peer.node.handler import DonatedState
from peer.run.manifest import Manifest, default_text, derive, parse_manifest
from peer.run.ticket import Ticket
from tests.support.joining import state_of

ADDRESS = "/ip4/127.0.0.1/tcp/7/p2p/12D3KooWB9K64eNs5zrjcgEnb48PeEoqmS6ygxBizwbpmdRWG3mQ"
TICKET = Ticket(b"R" * 32, (ADDRESS,)).encode()


def manifest(preset: str = "noloco") -> Manifest:
    return parse_manifest(derive(default_text(), [f"sync.preset={preset}"]).encode())


def test_some_peers_lie_each_in_its_way() -> None:
    assert attacks_of(["2@negate", "4@flip"], manifest(), 4, chaos=False) == {2: "negate", 4: "flip"}
    told = attacks_of(["1@owner-lie", "2@flip"], manifest("diloco"), 4, chaos=False)
    assert told == {1: "owner-lie", 2: "flip"}


@pytest.mark.parametrize(
    ("texts", "preset", "chaos", "fix"),
    [
        (["negate"], "noloco", False, "K@KIND"),
        (["two@negate"], "noloco", False, "K@KIND"),
        (["5@negate"], "noloco", False, "--peers"),
        (["0@negate"], "noloco", False, "--peers"),
        (["2@negate", "2@flip"], "noloco", False, "one --attack"),
        (["2@lies"], "noloco", False, "negate"),
        (["2@owner-lie"], "noloco", False, "diloco"),
        (["2@flip"], "none", False, "gossip"),
        (["2@backdoor"], "noloco", False, "peer simulate"),
        (["2@flip"], "noloco", True, "one of them"),
        ([f"{number}@flip" for number in range(1, 5)], "noloco", False, "honest"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(texts: list[str], preset: str, chaos: bool, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        attacks_of(texts, manifest(preset), 4, chaos=chaos)
    assert fix in refused.value.fix


def test_a_refusal_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UsageError, match="no peer"):
        CliRunner().invoke(command, ["--peers", "4", "--attack", "5@flip"], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_a_person_reads_who_lied() -> None:
    row: dict[str, Any] = {"exit_code": 0, "steps": 1, "bytes_sent": 0, "killed": False, "val_loss_round": None}
    row |= {"rounds": {"paired": 1, "solo": 0, "refused": 7, "failed": 0}, "val_loss_first": 5.5, "val_loss_last": 2.0}
    book = {"processed": 8, "applied": 8, "dropped": 0, "outstanding": 0}
    swarm = {"val_loss_mean": 2.0, "tokens_per_s": 1.0, "ledger": book}
    swarm |= dict.fromkeys(("replica_spread", "participation", "rounds_ended_in_time", "rounds_closed_in_time"))
    newcomer = Newcomer("a", 2.5, 2.375, 1)
    attack = AttackReport("flip", ("b", "c"), 2.25, None, Excluded(7, 1), (newcomer,)).to_json()
    peers = [row | {"peer_id": peer} for peer in "abc"]
    lines = table({"peers": peers, "swarm": swarm, "faults": [], "orders": [], "attack": attack}).splitlines()
    assert lines[1].split() == ["peer", "1", "0", "1", "1", "0", "7", "0", "5.500", "2.000", "0"]
    liars = next(at for at, line in enumerate(lines) if line.startswith("liars"))
    assert lines[liars : liars + 4] == [
        "liars                                peer 2, peer 3 (flip)",
        "validation loss of the honest        2.250 nats a token",
        "exchanges they turned away           7 with liars, 1 with each other",
        "state of a newcomer                  "
        "from an honest peer, 1 refused: 2.500 nats a token, the others last had 2.375",
    ]


def test_a_liar_is_another_program_with_the_same_options(tmp_path: Path) -> None:
    plan = SwarmPlan(peers=4, manifest=default_text(), home=tmp_path, seed=7, setups=PeerSetups(attacks={2: "negate"}))
    swarm = Swarm(plan, print)
    assert swarm._program(1) == ("peer",)
    module, *told = swarm._program(2)
    assert module == "peer.lab.attack.process"
    given = ["join", TICKET, "--host-maddrs", LOOPBACK, "--threads", "1", "--speed", "0.5", "--min-peers", "4"]
    liar, options = read([*told, *given, "--checkpoint-every", "15", "--step-seconds", "0.1", "--home", str(tmp_path)])
    assert isinstance(liar.strategy, partial)
    assert liar.donated is DonatedState
    assert (options.speed, options.min_peers, options.step_seconds) == (0.5, 4, 0.1)
    assert options.run_id == b"R" * 32


def test_a_daemon_is_honest_unless_it_is_made_otherwise() -> None:
    made = {field.name: field.default for field in dataclasses.fields(DaemonParts)}
    assert (made["make_strategy"], made["make_donated"]) == (make_strategy, DonatedState)


def test_a_donor_that_lies_gives_noise_of_a_round_ahead(tmp_path: Path) -> None:
    given = ["join", TICKET, "--host-maddrs", LOOPBACK, "--home", str(tmp_path)]
    liar, _ = read([DONOR, "7", *given])
    assert liar.strategy is make_strategy
    donated = liar.donated(state_of(1), lambda: 5, lambda: 0.0)
    index = donated.on_state(fresh=False, wanted="")
    assert index.round == 5 + DONORS_AHEAD
    honest = DonatedState(state_of(1), lambda: 5, lambda: 0.0).on_state(fresh=False, wanted="")
    assert not {piece.digest for piece in index.pieces} & {piece.digest for piece in honest.pieces}
    assert attacks_of(["2@donor"], manifest(), 4, chaos=False) == {2: DONOR}
    assert attacks_of(["2@donor"], manifest("diloco"), 4, chaos=False) == {2: DONOR}
