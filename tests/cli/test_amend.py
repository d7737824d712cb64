from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.amend import _peer
from peer.cli.main import peer
from peer.errors import ManifestError, UsageError
from peer.identity import Identity, load_or_create
from peer.protocol.messages import RunId
from peer.protocol.policy.amendments import NO_REASON, Change, policy_at
from peer.run.home import Home
from peer.run.manifest import load_signed, write_new
from peer.run.statements.files import FORMER_START, beside, load, write_statements
from peer.run.statements.kinds import PAPER
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import delegate


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_new(tmp_path / "run.toml", load_or_create(tmp_path / "home" / "identity.key"))
    return tmp_path / "run.toml"


def amend(manifest: Path, *words: str, home: str = "home") -> str:
    arguments = ["manifest", "amend", str(manifest), *words, "--home", str(manifest.parent / home)]
    result = CliRunner().invoke(peer, arguments)
    if result.exception is not None:
        raise result.exception
    return result.output


def held(manifest: Path) -> StatementLog:
    signed = load_signed(manifest)
    log = StatementLog(RunId(signed.run_id), signed.manifest.operator)
    load(manifest.with_suffix(".amendments"), log)
    return log


def test_amendments_follow_one_another(manifest: Path) -> None:
    who = load_or_create(manifest.parent / "other.key").peer_id
    assert "learning rate times 0.5 (plateau)" in amend(
        manifest, "lr-scale", "0.5", "--at-round", "9", "--reason", "plateau"
    )
    amend(manifest, "pause")
    amend(manifest, "resume")
    amend(manifest, "ban", who)
    amend(manifest, "wire", "1-4", "--at-round", "12")
    amend(manifest, "refound", "AB" * 32)
    made = held(manifest).amendments
    assert [(a.number, a.round, a.change) for a in made] == [
        (1, 9, Change.LR_SCALE),
        (2, 9, Change.PAUSE),
        (3, 9, Change.GO_ON),
        (4, 9, Change.BAN),
        (5, 12, Change.WIRE),
        (6, 12, Change.REFOUND),
    ]
    assert (made[4].low, made[4].high, made[5].digest) == (1, 4, b"\xab" * 32)


@pytest.mark.parametrize(
    "words",
    [
        ("lr-scale",),
        ("lr-scale", "fast"),
        ("lr-scale", "nan"),
        ("lr-scale", "0"),
        ("lr-scale", "1e-9"),
        ("lr-scale", "50"),
        ("lr-scale", "inf"),
        ("pause", "now"),
        ("wire", "3-1"),
        ("wire", "new"),
        ("wire", "1-2"),
        ("wire", "4-9"),
        ("pause", "--reason", "x" * 301),
        ("ban", "me"),
        ("refound", "xyz"),
        ("pause", "--reason", "\x1b[31m"),
    ],
)
def test_what_cannot_be_is_said_with_what_to_give(manifest: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        amend(manifest, *words)
    assert caught.value.fix
    assert not manifest.with_suffix(".amendments").exists()


def test_a_slip_is_replaced_by_one_that_holds_sooner(manifest: Path) -> None:
    amend(manifest, "pause", "--at-round", "70")
    amend(manifest, "lr-scale", "0.5", "--at-round", "70")
    who = load_or_create(manifest.parent / "other.key").peer_id
    assert "With --at-round 0 one holds at once" in amend(manifest, "unban", who)
    said = amend(manifest, "ban", who, "--at-round", "0")
    assert "from when it was known" in said
    assert "Peers of an earlier version refuse" in said
    said = amend(manifest, "resume", "--at-round", "0")
    assert "amendment 1 will not hold: this one replaces it" in said
    last = policy_at(held(manifest).amendments, 79)
    assert (last.paused, last.lr_scale, dict(last.banned)) == (None, 0.5, {who: NO_REASON})
    assert amend(manifest, "list").splitlines()[:3] == [
        "amendment 1, replaced by 5: pause",
        "amendment 2, from round 70 on: learning rate times 0.5",
        f"amendment 3, from round 70 on: {who} is no longer banned",
    ]


def test_an_amendment_of_now_does_not_wait_for_one_that_is_ahead(manifest: Path) -> None:
    began(manifest, 10.5 * load_signed(manifest).manifest.sync.sync_every)
    amend(manifest, "pause", "--at-round", "70")
    who = load_or_create(manifest.parent / "other.key").peer_id
    assert "amendment 2, from round 10 on" in amend(manifest, "ban", who)
    assert "amendment 3, from round 10 on" in amend(manifest, "unban", who, "--at-round", "0")
    assert "replaces it" in amend(manifest, "resume", "--at-round", "69")


def test_a_round_more_than_a_year_ahead_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    settings = ["sync.clock=seconds", "sync.sync_every=60", "train.total_rounds=1000000000"]
    write_new(file, load_or_create(tmp_path / "home" / "identity.key"), settings)
    for round_ in ("999999999", "9007199254740991"):
        with pytest.raises(UsageError) as caught:
            amend(file, "pause", "--at-round", round_)
    with pytest.raises(UsageError, match="more than a year ahead") as caught:
        amend(file, "pause", "--at-round", "600000")
    amend(file, "pause", "--at-round", re.findall(r"up to (\d+)", caught.value.fix)[0])


def test_the_operators_key_and_nodes_are_not_kept_out(manifest: Path) -> None:
    signed, operator = load_signed(manifest), load_or_create(manifest.parent / "home" / "identity.key")
    node = load_or_create(manifest.parent / "node.key").peer_id
    log = StatementLog(signed.run_id, operator.peer_id)
    log.add(delegate(operator, signed.run_id, node, ["start"], 1))
    write_statements(beside(manifest, PAPER), log.papers)
    with pytest.raises(UsageError, match="the operator's own key"):
        amend(manifest, "ban", operator.peer_id)
    with pytest.raises(UsageError, match="a node of yours") as caught:
        amend(manifest, "ban", node)
    assert f"{node} --may nothing" in caught.value.fix
    log.add(delegate(operator, signed.run_id, node, [], 2))
    write_statements(beside(manifest, PAPER), log.papers)
    amend(manifest, "ban", node)


def began(manifest: Path, seconds_ago: float, former: bool = False) -> None:
    """Store the run's start in this home, as a bootstrap node does. `former`: in a file of an earlier version."""
    start, run = time.time() - seconds_ago, load_signed(manifest)
    folder = Home(manifest.parent / "home").run(run.run_id).path
    if former:
        (folder / FORMER_START).write_text(repr(start))
        return
    log = StatementLog(run.run_id, run.manifest.operator)
    log.add(log.sign_start(load_or_create(Home(manifest.parent / "home").identity), start, start))
    write_statements(folder / PAPER.kept, log.papers)


@pytest.mark.parametrize("former", [False, True])
def test_a_round_may_be_named_by_its_distance(manifest: Path, former: bool) -> None:
    length = load_signed(manifest).manifest.sync.sync_every
    began(manifest, 10.5 * length, former)
    amend(manifest, "pause", "--in-rounds", "3")
    assert held(manifest).amendments[0].round == 13


def test_before_the_run_began_the_distance_counts_from_its_beginning(manifest: Path) -> None:
    began(manifest, -1000.0)
    amend(manifest, "pause", "--in-rounds", "3")
    assert held(manifest).amendments[0].round == 3


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("--in-rounds", "3"), "name the --home of a peer or node of this run"),
        (("--at-round", "80"), "from 0 to 79"),
        (("--in-rounds", "3", "--at-round", "4"), "Give one of them"),
    ],
)
def test_a_distance_that_tells_no_round_is_refused(manifest: Path, words: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        amend(manifest, "pause", *words)
    assert fix in caught.value.fix
    assert not manifest.with_suffix(".amendments").exists()


def test_only_the_operators_key_amends(manifest: Path) -> None:
    load_or_create(manifest.parent / "somebody" / "identity.key")
    with pytest.raises(ManifestError, match=r"names .* as operator, and the key in .*somebody/identity.key is"):
        amend(manifest, "pause", home="somebody")


def test_a_damaged_file_is_left_alone(manifest: Path) -> None:
    amend(manifest, "pause")
    path = manifest.with_suffix(".amendments")
    damaged = path.read_bytes().replace(b"pause", b"go_on")
    path.write_bytes(damaged)
    with pytest.raises(ManifestError, match="line 1"):
        amend(manifest, "resume")
    assert path.read_bytes() == damaged


def test_invitations_are_revoked_and_given_back_where_they_matter(manifest: Path, tmp_path: Path) -> None:
    who = load_or_create(tmp_path / "other.key").peer_id
    with pytest.raises(UsageError, match="admits everybody"):
        amend(manifest, "revoke", who)
    home = tmp_path / "home" / "identity.key"
    invited = write_new(tmp_path / "invited.toml", load_or_create(home), ["admission.kind=invited"])
    assert invited.manifest.admission.kind == "invited"
    path = tmp_path / "invited.toml"
    assert f"the invitation of {who} is revoked (gone)" in amend(path, "revoke", who, "--reason", "gone")
    ruling = policy_at(held(path).amendments, 0)
    assert ruling.revoked == ruling.kept_out == {who: "gone"}
    amend(path, "ban", who)
    assert policy_at(held(path).amendments, 0).kept_out == {who: NO_REASON}
    amend(path, "unban", who)
    assert not policy_at(held(path).amendments, 0).kept_out


def test_go_on_is_answered_with_the_word_of_today(manifest: Path) -> None:
    for former in ("go-on", "go_on"):
        with pytest.raises(UsageError, match="called resume now") as caught:
            amend(manifest, former)
        assert caught.value.fix.endswith("amend run.toml resume")
    assert not held(manifest).amendments
    amend(manifest, "pause")
    assert amend(manifest, "resume").startswith("amendment 2, from when it was known: resume\n")


def test_list_shows_the_amendments_without_a_key(manifest: Path) -> None:
    assert "no amendments in" in amend(manifest, "list", home="elsewhere")
    amend(manifest, "lr-scale", "0.5", "--reason", "plateau")
    amend(manifest, "pause", "--at-round", "7")
    assert amend(manifest, "list", home="elsewhere").splitlines() == [
        "amendment 1, from when it was known: learning rate times 0.5 (plateau)",
        "amendment 2, from round 7 on: pause",
    ]
    with pytest.raises(UsageError, match="takes no value"):
        amend(manifest, "list", "all")


def met(manifest: Path, *peers: str) -> None:
    """Add these peers to the directory file in the home of the operator's node."""
    folder = Home(manifest.parent / "home").run(load_signed(manifest).run_id)
    (folder.path / "run_view.json").write_text(json.dumps({"peers": [{"peer_id": peer} for peer in peers]}))


def test_a_unique_ending_names_a_peer(manifest: Path) -> None:
    one, other = Identity.generate().peer_id, Identity.generate().peer_id
    met(manifest, one, other, "12D3KooWnobody")
    amend(manifest, "ban", f"…{one[-6:]}")
    assert f"{other} is banned" in amend(manifest, "ban", other[-8:])
    met(manifest)
    amend(manifest, "unban", one[-7:])  # found in the earlier amendments, as the directory lacks it
    assert [(a.change, a.peer) for a in held(manifest).amendments] == [
        (Change.BAN, one),
        (Change.BAN, other),
        (Change.UNBAN, one),
    ]


def test_an_ending_that_names_none_or_several_bans_nobody(manifest: Path) -> None:
    one = Identity.generate().peer_id
    met(manifest, one)
    for ending, why in (
        (one[-5:], "at least 6"),
        ("", "at least 6"),
        ("q" * 9, "no peer known here ends in"),
        (one[:20], "no peer known here"),
    ):
        with pytest.raises(UsageError, match=why):
            amend(manifest, "ban", ending)
    with pytest.raises(UsageError, match="2 peers known here end in"):
        _peer("abcdef", {"12D3KooWxabcdef", "12D3KooWyabcdef"})
    assert not held(manifest).amendments


def test_an_amendment_of_now_names_the_round_that_is_under_way(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    start = time.time() - 27.5 * 60
    settings = ["sync.clock=seconds", "sync.sync_every=60", f"start={start!r}"]
    write_new(file, load_or_create(tmp_path / "home" / "identity.key"), settings)
    assert "from round 27 on: pause" in amend(file, "pause")
