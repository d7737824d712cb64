"""The key and the invitation with which `peer export`, `eval` and `generate` authenticate to the peers of a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import SourceError, TicketError
from peer.identity import Identity, load_or_create
from peer.node.open import LocalNode
from peer.protocol.messages import RunId
from peer.result import source
from peer.result.model import GuestRequest, SourceRequest
from peer.run.admission.invitation import Invitation
from peer.run.options import NodeOptions

RUN = RunId(b"r" * 32)
COMMANDS = (("export", "TICKET", "new"), ("eval", "TICKET"), ("generate", "TICKET", "--prompt", "once"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[GuestRequest]:
    found = list[GuestRequest]()

    def load(sources: Sequence[str], request: SourceRequest, say: Any) -> Any:
        found.append(request.guest)
        raise SourceError("enough")

    monkeypatch.setattr(source, "load_model", load)
    monkeypatch.setenv("PEER_HOME", str(tmp_path / "default"))
    monkeypatch.chdir(tmp_path)
    return found


def call(*words: object) -> None:
    CliRunner().invoke(peer, [str(word) for word in words], catch_exceptions=False)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_an_invitation_is_shown_with_the_key_that_it_names(
    asked: list[GuestRequest], command: Sequence[str], tmp_path: Path
) -> None:
    given = Invitation.make(Identity.generate(), RUN, Identity.generate().peer_id, 2**33)
    (tmp_path / "ada.invitation").write_text(given.encode())
    shown = (*command, "--invitation", "@ada.invitation")
    for words in (command, shown, (*shown, "--home", "mine"), (*shown, "--identity-path", "ada.key")):
        with pytest.raises(SourceError, match="enough"):
            call(*words)
    assert [guest.invitation for guest in asked] == [None, given, given, given]
    keys = [None, tmp_path / "default" / "identity.key", Path("mine/identity.key"), Path("ada.key")]
    assert [guest.key for guest in asked] == keys
    assert not (tmp_path / "default").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_mistyped_invitation_is_refused_as_peer_join_does(asked: list[GuestRequest], command: Sequence[str]) -> None:
    with pytest.raises(TicketError, match="no invitation"):
        call(*command, "--invitation", "peerin")
    assert asked == []


def test_a_few_donors_are_the_default(asked: list[GuestRequest]) -> None:
    for words in (("export", "TICKET", "new"), ("eval", "TICKET", "--donors", "2")):
        with pytest.raises(SourceError, match="enough"):
            call(*words)
    assert [guest.donors for guest in asked] == [None, 2]


def test_the_operator_names_its_key_and_needs_no_invitation(asked: list[GuestRequest]) -> None:
    with pytest.raises(SourceError, match="enough"):
        call("eval", "TICKET", "--identity-path", "operator.key")
    assert (asked[0].key, asked[0].invitation) == (Path("operator.key"), None)


def test_a_guest_proves_the_invited_key_and_stands_in_the_network_with_another(tmp_path: Path) -> None:
    invited = load_or_create(tmp_path / "ada.key")
    node = LocalNode.of(NodeOptions(home=tmp_path / "guest"), RUN, lambda line: None)
    assert node.proven is node.identity
    guest = LocalNode.of(NodeOptions(home=tmp_path / "guest"), RUN, lambda line: None, temporary_identity=invited)
    assert guest.proven is invited
    assert guest.me != invited.peer_id
