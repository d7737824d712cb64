"""Invitations must be checked offline, and an invalid one refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.codes import Code
from peer.errors import TicketError
from peer.identity import Identity
from peer.protocol.messages import PeerId, RunId
from peer.protocol.policy.amendments import Change
from peer.run.admission import invitation
from peer.run.admission.invitation import (
    BYTES,
    Invitation,
    InvitedPeers,
)
from peer.run.statements.log import StatementLog

RUN, OTHER_RUN = RunId(b"r" * 32), RunId(b"s" * 32)
OPERATOR, ADA, BOB = (Identity.generate() for _ in range(3))
NOW, LATER = 1_000_000.0, 2_000_000


def made(**other: object) -> Invitation:
    given: dict[str, object] = {"operator": OPERATOR, "run_id": RUN, "peer": ADA.peer_id, "expires": LATER}
    return Invitation.make(**{**given, **other})  # type: ignore[arg-type]  # of the right types, one by one


def rule(*, required: bool = True, revoked: dict[PeerId, str] | None = None, now: float = NOW) -> InvitedPeers:
    exempt = {PeerId(BOB.peer_id)}
    log = StatementLog(RUN, OPERATOR.peer_id)
    for peer, why in (revoked or {}).items():
        log.amend(OPERATOR, 0, Change.REVOKE, why, peer=peer)
    return InvitedPeers(log, lambda: now, required=required, exempt=exempt)


def test_an_invitation_survives_its_text_and_its_bytes() -> None:
    one = made()
    assert Invitation.named(one.encode()) == one
    assert Invitation.named(f"\n {one.encode().upper()[:40]}\n{one.encode()[40:]} ") == one
    assert Invitation.parse(one.raw) == one
    assert len(one.raw) == BYTES
    assert one.encode().startswith("peerin")


def test_whoever_is_invited_is_let_in_and_remembered_until_it_is_over() -> None:
    now = [NOW]
    gate = InvitedPeers(StatementLog(RUN, OPERATOR.peer_id), lambda: now[0], required=True)
    ada = PeerId(ADA.peer_id)
    assert ada not in gate
    assert gate.refusal(ada, made().raw) is None
    assert ada in gate
    now[0] = LATER
    assert ada not in gate


@pytest.mark.parametrize(
    ("shown", "code", "words"),
    [
        (b"", Code.UNINVITED, "invited peers only"),
        (made(expires=int(NOW)).raw, Code.INVITATION_EXPIRED, "expired on 1970-01-12"),
        (made(run_id=OTHER_RUN).raw, Code.INVITATION_FOREIGN, "for another run"),
        (made(peer=BOB.peer_id).raw, Code.INVITATION_FOREIGN, f"was given to {BOB.peer_id}"),
        (made(operator=ADA).raw, Code.INVITATION_ALTERED, "never signed it"),
        (b"\0" * BYTES, Code.INVITATION_ALTERED, "cannot be read"),
        (b"\1" + b"\xff" * (BYTES - 1), Code.INVITATION_ALTERED, "cannot be read"),
        (made().raw + b"\0", Code.INVITATION_ALTERED, "cannot be read"),
    ],
    ids=["none", "expired", "foreign run", "foreign key", "other signer", "zeros", "ones", "too long"],
)
def test_all_others_are_refused_with_a_sentence(shown: bytes, code: str, words: str) -> None:
    gate, ada = rule(), PeerId(ADA.peer_id)
    found = gate.refusal(ada, shown)
    assert found is not None
    assert found[0] == code
    assert words in found[1]
    assert ADA.peer_id in found[1]
    assert ada not in gate
    assert rule(required=False).refusal(ada, shown) is None, "an open run lets everybody in"


def test_a_revoked_invitation_is_refused_with_the_operators_reason() -> None:
    ada = PeerId(ADA.peer_id)
    gate = rule(revoked={ada: "sold the machine"})
    assert gate.refusal(ada, made().raw) == (
        Code.INVITATION_REVOKED,
        f"the operator took back the invitation of {ada}: sold the machine",
    )
    assert ada not in gate


def test_every_single_byte_counts() -> None:
    raw, gate = made().raw, rule()
    for at in range(len(raw)):
        for flip in (1, 0x80):
            changed = raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]
            assert gate.refusal(PeerId(ADA.peer_id), changed) is not None, at


def test_the_operator_and_its_nodes_need_none() -> None:
    gate = rule()
    assert gate.refusal(PeerId(OPERATOR.peer_id), b"") is None
    assert gate.refusal(PeerId(BOB.peer_id), b"") is None


@pytest.mark.parametrize("pasted", ["\ufeff{}", "**{}**", "Here it is: {}.", "> {}", "https://example.org/?i={}"])
def test_a_pasted_invitation_is_found(pasted: str) -> None:
    text = made().encode()
    for word in (text, text.upper(), f"{text[:40]}=\n{text[40:]}", f"{text[:40]}\u200b{text[40:]}"):
        assert Invitation.named(pasted.format(word)) == made()


def test_mistyped_texts_are_refused(tmp_path: Path) -> None:
    text = made().encode()
    path = tmp_path / "ada.invitation"
    path.write_text(text + "\n")
    assert Invitation.named(f"@{path}") == made()
    for wrong in ("", "peer", text[:-1], text + "a", text[:9] + ("a" if text[9] != "a" else "b") + text[10:], "€" * 9):
        with pytest.raises(TicketError, match="no invitation"):
            Invitation.named(wrong)
    for missing in (f"@{tmp_path}/none", f"@{tmp_path}", "@a\0b"):
        with pytest.raises(TicketError, match="cannot read"):
            Invitation.named(missing)


def test_the_memory_of_the_invited_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "MAX_KNOWN", 2)
    gate, keys = rule(), [Identity.generate() for _ in range(3)]
    for key in keys:
        assert gate.refusal(PeerId(key.peer_id), made(peer=key.peer_id).raw) is None
    assert [PeerId(key.peer_id) in gate for key in keys] == [False, True, True]
