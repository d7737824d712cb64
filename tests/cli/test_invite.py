"""`peer ticket invite`, and the other commands of `peer ticket` beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peer.cli.main import peer
from peer.errors import IdentityError, ManifestError, PeerError, TicketError, UsageError
from peer.identity import load_or_create
from peer.run.admission.invitation import Invitation
from peer.run.manifest import SignedManifest, write_new
from peer.run.ticket import Ticket

NOW = 1_800_000_000.0


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SignedManifest:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peer.cli.invite.time.time", lambda: NOW)
    return write_new(Path("run.toml"), load_or_create(Path("home/identity.key")), ["admission.kind=invited"])


def call(*words: str) -> Result:
    result = CliRunner().invoke(peer, words)
    if isinstance(result.exception, PeerError):
        raise result.exception
    return result


def test_an_operator_invites_a_key_for_some_days(signed: SignedManifest, tmp_path: Path) -> None:
    ada, operator = load_or_create(tmp_path / "ada.key").peer_id, signed.manifest.operator
    said = call("ticket", "invite", ada, "--expires", "2d", "--home", "home")
    assert said.exit_code == 0
    assert f"{ada} may take part until 2027-01-17 08:00 UTC" in said.stderr
    made = Invitation.named(said.stdout)
    assert made.expires == NOW + 2 * 86400
    assert made.refusal(signed.run_id, [operator], ada, NOW) is None
    report = json.loads(call("ticket", "invite", ada, "--home", "home", "--run", "run.toml", "--json").stdout)
    assert Invitation.named(report["invitation"]).expires == report["expires"] == NOW + 30 * 86400
    assert (report["peer_id"], report["run_id"]) == (ada, signed.run_id.hex())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("nobody", "--home", "home"), UsageError),
        (("12D3KooWRBSDQEuKoGGzdgfa4J3MEoy3cFSeAtrecvNaA7UfMmc5", "--home", "another"), IdentityError),
        (("12D3KooWRBSDQEuKoGGzdgfa4J3MEoy3cFSeAtrecvNaA7UfMmc5", "--run", "none.toml"), ManifestError),
    ],
)
def test_others_invite_nobody(signed: SignedManifest, words: tuple[str, ...], error: type[PeerError]) -> None:
    with pytest.raises(error):
        call("ticket", "invite", *words)


def test_tickets_are_made_and_shown(signed: SignedManifest) -> None:
    key = load_or_create(Path("node.key")).peer_id
    address = f"/ip4/203.0.113.7/tcp/4810/p2p/{key}"
    ticket = call("ticket", "new", "run.toml", "--initial-peers", address).stdout.strip()
    assert Ticket.decode(ticket).run_id == signed.run_id
    assert json.loads(call("ticket", "show", ticket, "--json").stdout)["addresses"] == [address]
    assert "invite" in call("ticket", "--help").stdout
    assert "--expires" in call("ticket", "invite", "--help").stdout
    with pytest.raises(TicketError):
        call("ticket", "show", "peersw")


def test_a_mistyped_invitation_is_refused_before_anything_starts(signed: SignedManifest) -> None:
    for command in (("join", "run.toml"), ("bootstrap", "run.toml")):
        with pytest.raises(TicketError, match="no invitation"):
            call(*command, "--invitation", "peerin")
