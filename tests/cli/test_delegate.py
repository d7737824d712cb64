"""An operator's key in a separate file, and delegations for a node's signatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peer.cli.main import peer
from peer.errors import IdentityError, ManifestError, PeerError, UsageError
from peer.identity import Identity, load_or_create
from peer.run.admission.invitation import Invitation, InvitedPeers
from peer.run.home import Home
from peer.run.manifest import SignedManifest, load_signed
from peer.run.statements.files import beside, load, write_statements
from peer.run.statements.kinds import PAPER, DelegationDocument
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import delegate

NOW = 1_800_000_000.0
OFFLINE = ("--identity-path", "operator.key")


def call(*words: str) -> Result:
    result = CliRunner().invoke(peer, words)
    if isinstance(result.exception, PeerError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignedManifest:
    monkeypatch.chdir(tmp_path)
    for module in ("delegate", "invite"):
        monkeypatch.setattr(f"peer.cli.{module}.time.time", lambda: NOW)
    call("id", "new", "--operator", "operator.key")
    call("manifest", "new", "run.toml", *OFFLINE, "--set", "admission.kind=invited")
    return load_signed(Path("run.toml"))


@pytest.fixture
def node(signed: SignedManifest) -> str:
    return str(json.loads(call("id", "show", "--home", "node", "--json").stdout)["peer_id"])


def held() -> StatementLog:
    run = load_signed(Path("run.toml"))
    log = StatementLog(run.run_id, run.manifest.operator)
    load(beside(Path("run.toml"), PAPER), log)
    return log


def test_an_operators_key_lies_in_a_file_of_its_own_for_its_owner_alone(signed: SignedManifest, node: str) -> None:
    key = Path("operator.key")
    assert key.stat().st_mode & 0o777 == 0o600
    assert signed.manifest.operator == load_or_create(key).peer_id != node
    before = key.read_bytes()
    with pytest.raises(IdentityError, match="exists"):
        call("id", "new", "--operator", "operator.key")
    assert key.read_bytes() == before
    report = json.loads(call("id", "new", "--operator", "another.key", "--json").stdout)
    assert report["peer_id"] == load_or_create(Path("another.key")).peer_id


def test_a_node_may_sign_what_the_operator_delegates(signed: SignedManifest, node: str) -> None:
    said = call("manifest", "delegate", "run.toml", node, *OFFLINE, "--may", "start", "--expires", "2d").output
    assert f"{node} may sign: start" in said
    assert held().may(node, "start", NOW)
    assert not held().may(node, "start", NOW + 2 * 86400)
    assert not held().may(node, "invitations", NOW)
    call("manifest", "delegate", "run.toml", node, *OFFLINE)
    assert all(held().may(node, duty, 1e12) for duty in ("start", "digests", "invitations")), "at once, and for ever"
    call("manifest", "delegate", "run.toml", node, *OFFLINE, "--may", "nothing", "--start", "none")
    assert held().nodes(NOW) == frozenset()


def test_others_delegate_nothing(signed: SignedManifest, node: str) -> None:
    for words, error in (
        ((node, "--home", "node"), ManifestError),
        (("nobody", *OFFLINE), UsageError),
        ((signed.manifest.operator, *OFFLINE), IdentityError),
        ((node, *OFFLINE, "--may", "nothing", "--may", "start"), UsageError),
    ):
        with pytest.raises(error):
            call("manifest", "delegate", "run.toml", *words)
    assert not beside(Path("run.toml"), PAPER).exists()


@pytest.mark.parametrize(
    "words",
    [
        ("manifest", "new", "new.toml"),
        ("manifest", "sign", "run.toml"),
        ("manifest", "amend", "run.toml", "pause"),
        ("manifest", "delegate", "run.toml", "NODE"),
        ("ticket", "invite", "NODE"),
        ("plan", "--params", "1M", "--machine", "1T", "--write", "new.toml"),
        ("ticket", "new", "run.toml", "--address", "/dns4/host.example/tcp/4810"),
        ("id", "show"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_mistyped_key_file_makes_no_key_and_signs_nothing(
    signed: SignedManifest, node: str, words: list[str]
) -> None:
    before = {path: path.is_dir() or path.read_bytes() for path in Path.cwd().rglob("*")}
    with pytest.raises(IdentityError, match=r"no key file .*oprator\.key") as caught:
        call(*(node if word == "NODE" else word for word in words), "--identity-path", "keys/oprator.key")
    assert "keys/oprator.key" in caught.value.fix.split("peer id new ")[1], "the command that makes it"
    assert {path: path.is_dir() or path.read_bytes() for path in Path.cwd().rglob("*")} == before


def test_a_mistyped_home_makes_no_key_where_one_is_used(signed: SignedManifest, node: str) -> None:
    for words in (
        ("manifest", "sign", "run.toml"),
        ("manifest", "amend", "run.toml", "pause"),
        ("manifest", "delegate", "run.toml", node),
        ("ticket", "invite", node),
    ):
        with pytest.raises(IdentityError, match=r"no key file .*hmoe/identity\.key") as caught:
            call(*words, "--home", "hmoe")
        assert f"peer id new --home {Path('hmoe').absolute()}" in caught.value.fix
    assert not Path("hmoe").exists()


def test_the_first_manifest_of_a_fresh_home_makes_its_key_and_says_so(tmp_path: Path) -> None:
    words = ("manifest", "new", str(tmp_path / "run.toml"), "--home", str(tmp_path / "home"))
    made = call(*words).stderr
    assert f"this home has no key yet: making {tmp_path}/home/identity.key" in made
    assert (
        load_signed(tmp_path / "run.toml").manifest.operator == load_or_create(tmp_path / "home/identity.key").peer_id
    )
    (tmp_path / "run.toml").unlink()
    assert "no key yet" not in call(*words).stderr


@pytest.mark.parametrize("setting", ["lr=.004", "lrr=1", "lr"])
def test_a_setting_that_cannot_be_changes_nothing_in_a_fresh_home(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        call("manifest", "new", str(tmp_path / "run.toml"), "--set", setting, "--home", str(tmp_path / "fresh"))
    assert "nothing was changed" in caught.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["sync.preset=gosip", "total_rounds=0", "lr=-1"])
def test_a_value_that_cannot_be_changes_nothing_in_a_fresh_home(setting: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        call("manifest", "new", str(tmp_path / "run.toml"), "--set", setting, "--home", str(tmp_path / "fresh"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("manifest", "new", "run.toml"), ("plan", "--params", "10M", "--machine", "1T", "--write", "run.toml")]
)
def test_a_file_that_is_there_stays_and_no_key_is_made(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text("mine")
    with pytest.raises(ManifestError, match=r"run\.toml exists"):
        call(*words, "--home", "fresh")
    assert Path("run.toml").read_text() == "mine"
    assert not Path("fresh").exists()


def test_another_key_is_named_by_its_file_and_never_advised(signed: SignedManifest, node: str) -> None:
    other = load_or_create(Path("other.key")).peer_id
    for words in (
        ("manifest", "sign"),
        ("manifest", "delegate", "run.toml", node),
        ("manifest", "amend", "run.toml", "pause"),
    ):
        words = words if len(words) > 2 else (*words, "run.toml")
        with pytest.raises(ManifestError, match=f"the key in other.key is {other}") as caught:
            call(*words, "--identity-path", "other.key")
        assert other not in caught.value.fix
        assert "--identity-path" in caught.value.fix


def test_a_node_invites_as_long_as_it_may_and_never_amends(signed: SignedManifest, node: str) -> None:
    ada = load_or_create(Path("ada.key")).peer_id
    invite = ("ticket", "invite", ada, "--home", "node")
    with pytest.raises(ManifestError, match="names"):
        call(*invite)
    call("manifest", "delegate", "run.toml", node, *OFFLINE, "--may", "invitations")
    shown = Invitation.named(call(*invite).stdout.strip()).raw
    rule = InvitedPeers(held(), lambda: NOW, required=True)
    assert rule.refusal(load_or_create(Path("ada.key")).peer_id, shown) is None  # type: ignore[arg-type]
    without = InvitedPeers(StatementLog(signed.run_id, signed.manifest.operator), lambda: NOW, required=True)
    assert without.refusal(ada, shown) is not None  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match="names"):
        call("manifest", "amend", "run.toml", "pause", "--home", "node")
    call("manifest", "delegate", "run.toml", node, *OFFLINE, "--may", "start")
    taken_back = InvitedPeers(held(), lambda: NOW, required=True)
    assert taken_back.refusal(ada, shown) is not None  # type: ignore[arg-type]
    call("manifest", "amend", "run.toml", "pause", *OFFLINE)


def kept_start(signed: SignedManifest, at: float) -> None:
    """Store a start that the node has signed in the home of a volunteer."""
    log, key = held(), load_or_create(Path("node/identity.key"))
    log.add(log.sign_start(key, at, NOW))
    write_statements(Home(Path("volunteer")).run(signed.run_id).path / PAPER.kept, log.papers)


def test_a_revocation_asks_for_the_start_and_signs_it_for_good(signed: SignedManifest, node: str) -> None:
    words = ("manifest", "delegate", "run.toml", node, *OFFLINE)
    call(*words)
    before = beside(Path("run.toml"), PAPER).read_bytes()
    with pytest.raises(UsageError, match="may have signed when the run began") as caught:
        call(*words, "--may", "nothing")
    assert "--start none if the run has not begun" in caught.value.fix
    assert "holds no start" in caught.value.fix
    kept_start(signed, NOW - 500.25)
    with pytest.raises(UsageError) as caught:
        call(*words, "--may", "digests", "--home", "volunteer")
    assert f"--start {NOW - 500.25!r}" in caught.value.fix
    assert beside(Path("run.toml"), PAPER).read_bytes() == before
    assert "for good" in call(*words, "--may", "nothing", "--start", repr(NOW - 500.25)).output
    assert held().start_is_final
    assert held().start_time == NOW - 500.25
    call(*words)
    call(*words, "--may", "nothing")
    with pytest.raises(UsageError, match="which is final"):
        call(*words, "--start", repr(NOW - 60))
    assert held().start_time == NOW - 500.25


def test_a_renewal_needs_no_start(signed: SignedManifest, node: str) -> None:
    for more in ((), ("--expires", "90d"), ("--may", "start"), ("--may", "start", "--may", "digests")):
        call("manifest", "delegate", "run.toml", node, *OFFLINE, *more)
    call("manifest", "delegate", "run.toml", node, *OFFLINE, "--start", repr(NOW - 60))
    assert held().start_is_final


@pytest.mark.parametrize("start", ["soon", "nan", "-1", "0", "1e400", repr(NOW + 2 * 86400), repr(NOW * 1000)])
def test_what_is_no_past_time_is_no_start(signed: SignedManifest, node: str, start: str) -> None:
    words = ("manifest", "delegate", "run.toml", node, *OFFLINE, "--start", start)
    assert "is no past time" in CliRunner().invoke(peer, words).output
    assert not beside(Path("run.toml"), PAPER).exists()


def test_a_start_by_which_the_run_would_be_over_is_refused(signed: SignedManifest, node: str) -> None:
    with pytest.raises(UsageError, match="would have ended"):
        call("manifest", "delegate", "run.toml", node, *OFFLINE, "--start", "1000000")


@pytest.mark.parametrize(
    "words",
    [
        ("manifest", "delegate", "run.toml", "NODE", "--expires", "99999d"),
        ("ticket", "invite", "NODE", "--expires", "99999d"),
    ],
    ids=["delegation", "invitation"],
)
def test_nobody_is_trusted_for_longer_than_ten_years(signed: SignedManifest, node: str, words: tuple[str, ...]) -> None:
    words = tuple(node if word == "NODE" else word for word in words)
    assert "is too long. At most 3660d" in CliRunner().invoke(peer, [*words, *OFFLINE]).output
    call(*words[:-1], "3660d", *OFFLINE)


def test_one_node_too_many_is_refused(signed: SignedManifest, node: str) -> None:
    log = held()
    for age in range(DelegationDocument.most):
        other = Identity.generate()
        log.add(delegate(load_or_create(Path("operator.key")), signed.run_id, other.peer_id, ["start"], int(NOW) + age))
    write_statements(beside(Path("run.toml"), PAPER), log.papers)
    with pytest.raises(UsageError, match="has named 16 nodes"):
        call("manifest", "delegate", "run.toml", node, *OFFLINE)
    assert held().named == log.named
