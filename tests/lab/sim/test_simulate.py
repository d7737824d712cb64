"""`peer simulate --peers`: numbers that add up, and refusals with a fix."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from peer.cli.compare import command as compare
from peer.cli.simulate import command
from peer.codec.lattice.codec import Modulo
from peer.errors import OrdersNotCarriedOut, UsageError
from peer.lab.sim.run import FAKE_ELEMENTS, MOST_PEERS
from tests.support.seeds import nightly


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


SMALL = ("--peers", "4", "--hours", "1", "--sync-every", "120", "--parameters", "1024")


def test_a_small_swarm_with_churn_in_numbers() -> None:
    report = json.loads(run(*SMALL, "--churn", "2", "--speeds", "4", "--json"))
    assert report["ledger_imbalance"] == 0
    assert report["processed"] > 0
    assert report["faults"]["kill"] > 0
    assert report["due"] >= report["exchanged"] + report["solo"] + report["failed"] > 60
    assert 0.5 < report["compute_utilization"] <= 1
    assert report["up_bytes_per_peer_hour"] == pytest.approx(report["down_bytes_per_peer_hour"])
    assert report["exchange_s_median"] <= report["exchange_s_p99"]


@pytest.mark.parametrize("preset", ["diloco", *nightly(["streaming-diloco"])])
def test_a_group_holds_one_truth(preset: str) -> None:
    report = json.loads(run(*SMALL, "--preset", preset, "--json"))
    assert report["truths"] == 1
    assert report["ledger_imbalance"] == 0
    assert report["exchanged"] == report["due"]
    assert report["spread"] == 0


def test_partners_of_the_fake_trainer_are_close_enough_for_the_lattice_codec() -> None:
    report = json.loads(run("--peers", "4", "--hours", "1", "--preset", "gossip", "--sync-every", "300", "--json"))
    payload = Modulo(7).nbytes(FAKE_ELEMENTS)
    assert report["exchanged"] == 4 * 12
    assert report["up_bytes_per_peer_hour"] < 1.1 * 12 * payload, "hardly a block is requested"


def test_the_tiny_trainer_learns() -> None:
    report = json.loads(run("--peers", "2", "--hours", "0.2", "--sync-every", "60", "--trainer", "tiny", "--json"))
    assert report["loss_last"] < report["loss_first"]


@pytest.mark.parametrize("name", ["single", "ddp"])
def test_a_baseline_is_the_one_that_compare_plays(name: str) -> None:
    played = ("--preset", name, "--trainer", "tiny", "--hours", "0.05", "--sync-every", "60", "--seed", "3")
    report = json.loads(run("--peers", "4", *played, "--json"))

    virtual = ("--virtual", "--steps", "180", "--set", "sync.clock=seconds", "--set", "sync.sync_every=60")
    arguments = [name, "--peers", "4", *virtual, "--seed", "3", "--json"]
    body = json.loads(CliRunner().invoke(compare, arguments, catch_exceptions=False).stdout)
    assert report["loss_last"] == body["methods"][0]["curve"][-1]["loss"]
    assert (report["baseline"], report["peers"]) == ({"name": name, "peers": 4}, 1)


def test_ddp_takes_the_batches_of_all_and_none_has_the_loss_of_single() -> None:
    played = ("--peers", "4", "--trainer", "tiny", "--hours", "0.1", "--sync-every", "60", "--json")
    ddp, single, none = (json.loads(run(*played, "--preset", name))["loss_last"] for name in ("ddp", "single", "none"))
    assert ddp < 0.95 * single
    assert none == pytest.approx(single, rel=0.03)


def test_a_person_reads_what_a_baseline_is() -> None:
    lines = run("--peers", "4", "--preset", "ddp", "--trainer", "tiny", "--hours", "0.02", "--sync-every", "60")
    assert lines.startswith("ddp: one model that takes the batches of all 4 peers in each step")


def test_a_person_reads_lines() -> None:
    assert "ledger        0 (balances)" in run(*SMALL)


def test_a_trainer_without_a_model_tells_no_loss() -> None:
    assert "loss          none: this trainer has no model. With --trainer tiny it learns" in run(*SMALL)
    report = json.loads(run(*SMALL, "--json"))
    assert (report["loss_first"], report["loss_last"], set(report["loss_by_hour"])) == (None, None, {None})


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--link", "cabel"), "cable"),
        (("--trainer", "real"), "tiny"),
        (("--hours", "0.01"), "--hours"),
        (("--churn", "-1"), "0 to 60"),
        (("--speeds", "0.5"), "1 to 1000"),
        (("--peers", "0"), str(MOST_PEERS)),
        (("--closed", "0.1"), "at least 0.25"),
        (("--churn", "0.0001"), "more --hours"),
        (("--nat", "symmetric"), "Add --closed"),
        (("--relays", "2"), "Add --closed"),
        (("--share", "0.5"), "Add --attack"),
        (("--trainer", "tiny"), "Add --trainer fake"),
        (("--preset", "ddp"), "Add --trainer tiny"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(arguments: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(*SMALL, *arguments)
    assert fix in refused.value.fix


@pytest.mark.parametrize("idle", [("--churn", "1"), ("--link", "home"), ("--speeds", "2"), ("--closed", "0.5")])
def test_what_means_nothing_to_a_baseline_is_refused(idle: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=f"{idle[0]} has no effect"):
        run("--peers", "4", "--hours", "1", "--preset", "ddp", "--trainer", "tiny", *idle)


@pytest.mark.parametrize(("name", "peers"), [("single", "0"), ("ddp", "0"), ("ddp", str(MOST_PEERS + 1))])
def test_a_baseline_of_an_impossible_swarm_is_refused(name: str, peers: str) -> None:
    with pytest.raises(UsageError) as refused:
        run("--peers", peers, "--hours", "1", "--preset", name, "--trainer", "tiny")
    assert str(MOST_PEERS) in refused.value.fix


def test_closed_homes_are_relayed_and_told() -> None:
    closed = ("--closed", "0.75", "--nat", "symmetric", "--relay-cap", "64kB", "--relays", "1")
    report = json.loads(run(*SMALL, *closed, "--json"))
    assert report["paths"]["relayed"] > 0
    assert report["paths"].keys() <= {"direct", "relayed"}
    assert report["exchanged"] >= 0.95 * report["due"]
    assert report["relayed_bytes_per_relay_hour"] > 0
    assert "relayed; " in run(*SMALL, *closed)


def test_homes_whose_routers_let_holes_through_need_no_relay_for_their_bytes() -> None:
    report = json.loads(run(*SMALL, "--closed", "1", "--nat", "port-restricted", "--json"))
    assert report["paths"].keys() == {"punched"}
    assert report["relayed_bytes_per_relay_hour"] == 0


def test_where_nobody_relays_closed_homes_train_alone() -> None:
    report = json.loads(run(*SMALL, "--closed", "1", "--nat", "symmetric", "--relays", "0", "--json"))
    assert (report["paths"], report["exchanged"]) == ({}, 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(("--closed", "1.5"), "--closed"), (("--nat", "cone"), "cone"), (("--relays", "-1"), "--relays")],
)
def test_impossible_homes_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run(*SMALL, "--closed", "0.5", *arguments)


def test_orders_that_were_carried_out_are_listed() -> None:
    orders = json.loads(run(*SMALL, "--churn", "2", "--attack", "flip", "--share", "0.25", "--json"))["orders"]
    assert [order["order"] for order in orders] == ["--hours 1", "--churn 2", "the attack of peer 2"]
    assert {order["why_not"] for order in orders} == {None}


def test_a_swarm_that_cannot_act_on_an_order_says_so() -> None:
    """Behind symmetric routers and without a relay no peer can exchange, so the liar finds no partner."""
    nobody = ("--closed", "1", "--nat", "symmetric", "--relays", "0", "--attack", "flip", "--share", "0.25")
    result = CliRunner().invoke(command, [*SMALL, *nobody])
    assert isinstance(result.exception, OrdersNotCarriedOut)
    assert "the attack of peer 2: it sent nothing to a partner" in result.output


def test_hours_without_a_swarm_are_refused() -> None:
    with pytest.raises(UsageError, match="--hours has no effect without --peers"):
        CliRunner().invoke(command, ["--hours", "3"], catch_exceptions=False)
