"""`peer simulate --attack`: the liars and the honest loss in the report, and refusals with a fix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.simulate import command
from peer.errors import UsageError
from peer.lab.attack.play import liars_among
from peer.lab.attack.report import AttackReport, Excluded, attack_text, excluded, mean_last_loss
from peer.observe.events import Evaluated, PartnerFailed

SMALL = ("--peers", "4", "--hours", "0.1", "--sync-every", "60", "--share", "0.25")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*SMALL, *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def attack(*arguments: str) -> dict[str, Any]:
    report = json.loads(run(*arguments, "--json"))
    assert report["ledger_imbalance"] == 0
    told: dict[str, Any] = report["attack"]
    assert told.keys() == {"kind", "liars", "honest_loss", "honest_loss_alone", "excluded", "newcomers"}
    return told


def test_the_report_tells_who_lied_and_what_it_cost() -> None:
    told = attack("--attack", "drift", "--trainer", "tiny")
    assert told["kind"] == "drift"
    assert told["liars"] == ["sim-002"]
    assert 0 < told["honest_loss_alone"] < 3.2
    assert 0 < told["honest_loss"] < 3.2
    assert told["honest_loss"] != told["honest_loss_alone"]
    assert told["excluded"].keys() == {"liars", "honest"}
    assert told["excluded"]["honest"] == 0


def test_the_same_seed_tells_the_same() -> None:
    assert attack("--attack", "far") == attack("--attack", "far")


def test_what_the_fake_trainer_evaluates_is_not_told_as_nats() -> None:
    lines = run("--attack", "far").splitlines()
    (line,) = [line for line in lines if line.startswith("honest loss")]
    assert "(mean square of the fake trainer's parameters, not of a model)" in line
    assert "nats" not in line


@pytest.mark.parametrize(
    ("kind", "more"),
    [("owner-lie", ("--preset", "diloco")), ("backdoor", ("--trainer", "tiny"))],
    ids=["owner-lie", "backdoor"],
)
def test_lies_that_are_not_told_to_a_partner_are_played_too(kind: str, more: tuple[str, ...]) -> None:
    assert attack("--attack", kind, *more)["kind"] == kind


def test_a_person_reads_the_attack() -> None:
    effect = AttackReport("flip", ("a", "b"), 2.2, 2.0, Excluded(7, 1))
    assert effect.more == pytest.approx(0.1)
    assert attack_text(effect).splitlines() == [
        "attack        flip by a b",
        "honest loss   2.2, alone 2 nats a token (+10.0%)",
        "turned away   7 times a liar, 1 times an honest peer",
    ]
    assert "not finite, alone 2" in attack_text(AttackReport("flip", ("a",), None, 2.0, Excluded(0, 0)))


def test_refusals_for_values_are_counted_by_partner() -> None:
    def failed(peer: str, code: str) -> PartnerFailed:
        return PartnerFailed(peer=peer, round=1, code=code, reason="")

    one = [failed("liar", "norm"), failed("good", "lost")]
    other = [failed("good", "not_finite"), failed("liar", "late")]
    assert excluded([one, other], {"liar"}) == Excluded(liars=1, honest=1)


def test_a_last_loss_that_is_not_finite_is_told_as_none() -> None:
    def seen(*losses: float) -> list[Evaluated]:
        return [Evaluated(round=number, loss=loss, bits_per_byte=1.0) for number, loss in enumerate(losses)]

    assert mean_last_loss([seen(3.0, 2.0), seen(4.0)]) == 3.0
    assert mean_last_loss([seen(3.0), seen(float("inf"))]) is None
    assert mean_last_loss([[]]) is None


def test_liars_are_spread_over_the_speeds() -> None:
    assert liars_among(8, 0.125) == (4,)
    assert liars_among(8, 0.25) == (2, 6)
    assert liars_among(8, 0.5) == (1, 3, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--attack", "lies"), "negate"),
        (("--attack", "flip", "--share", "0"), "at least one liar"),
        (("--attack", "flip", "--share", "0.9"), "two honest"),
        (("--attack", "flip", "--share", "nan"), "between 0 and 1"),
        (("--attack", "flip", "--peers", "2", "--share", "0.5"), "--peers 3"),
        (("--attack", "flip", "--preset", "snoo"), "gossip"),
        (("--attack", "owner-lie"), "diloco"),
        (("--attack", "owner-lie", "--preset", "sparseloco"), "diloco"),
        (("--attack", "backdoor"), "tiny"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_fix(arguments: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(*arguments)
    assert fix in refused.value.fix


def test_an_attack_without_a_swarm_is_refused() -> None:
    with pytest.raises(UsageError, match="--attack has no effect without --peers"):
        CliRunner().invoke(command, ["--attack", "flip"], catch_exceptions=False)
