"""A volunteer's own invitation must be stored, and checked before any peer is asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.errors import JoinRefused, TicketError
from peer.identity import Identity
from peer.joining.invitation import FILE, OwnAdmission, invited_peers, own_invitation
from peer.observe.status.value import AdmissionStatus
from peer.protocol.messages import PeerId, RunId
from peer.protocol.policy.amendments import Change
from peer.run.admission.invitation import Invitation
from peer.run.statements.log import StatementLog

RUN, OPERATOR, ME = RunId(b"r" * 32), Identity.generate(), Identity.generate()
HERE, NOW = PeerId(ME.peer_id), 1000.0
GIVEN = Invitation.make(OPERATOR, RUN, ME.peer_id, 2000)


def test_it_is_kept_for_later_starts(tmp_path: Path) -> None:
    assert own_invitation(tmp_path, None, RUN, HERE, NOW) is None
    assert own_invitation(tmp_path, GIVEN, RUN, HERE, NOW) == GIVEN
    assert own_invitation(tmp_path, None, RUN, HERE, NOW) == GIVEN
    assert own_invitation(tmp_path, None, RUN, HERE, 2000.0) == GIVEN, "whoever sees it says that it is over"
    assert own_invitation(tmp_path, None, RUN, PeerId(OPERATOR.peer_id), NOW) is None, "the key was changed"
    newer = Invitation.make(OPERATOR, RUN, ME.peer_id, 3000)
    assert own_invitation(tmp_path, newer, RUN, HERE, NOW) == newer
    assert own_invitation(tmp_path, None, RUN, HERE, 2000.0) == newer
    (tmp_path / FILE).write_text("torn")
    assert own_invitation(tmp_path, None, RUN, HERE, NOW) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Invitation.make(OPERATOR, b"s" * 32, ME.peer_id, 2000), "in run 7373737373737373"),
        (Invitation.make(OPERATOR, RUN, OPERATOR.peer_id, 2000), f"is for {OPERATOR.peer_id}"),
        (Invitation.make(OPERATOR, RUN, ME.peer_id, 999), "expired on 1970-01-01 00:16"),
    ],
    ids=["other run", "other key", "over"],
)
def test_one_that_is_not_ours_or_over_is_refused_at_once(tmp_path: Path, given: Invitation, words: str) -> None:
    with pytest.raises(TicketError, match=words):
        own_invitation(tmp_path, given, RUN, HERE, NOW)
    assert not (tmp_path / FILE).exists()


def admission(
    kind: str, now: list[float], revoked: dict[PeerId, str], own: Invitation | None, me: PeerId = HERE
) -> OwnAdmission:
    manifest = SimpleNamespace(operator=OPERATOR.peer_id, admission=SimpleNamespace(kind=kind))
    log = StatementLog(RUN, OPERATOR.peer_id)
    for peer, why in revoked.items():
        log.amend(OPERATOR, 0, Change.REVOKE, why, peer=peer)
    rule = invited_peers(cast(Any, manifest), log, lambda: now[0], ())
    return OwnAdmission(rule, me, own)


@pytest.mark.parametrize("kind", ["open", "invited"])
def test_a_peer_that_others_would_refuse_says_so_itself(kind: str) -> None:
    now, revoked = [NOW], dict[PeerId, str]()
    admission(kind, now, revoked, GIVEN).ensure()
    admission(kind, now, revoked, None, PeerId(OPERATOR.peer_id)).ensure()
    if kind == "open":
        admission(kind, now, revoked, None).ensure()
        return
    with pytest.raises(JoinRefused, match="shows no invitation"):
        admission(kind, now, revoked, None).ensure()
    revoked[HERE] = "sold"
    with pytest.raises(JoinRefused, match="took back the invitation"):
        admission(kind, now, revoked, GIVEN).ensure()


def test_a_peer_that_takes_part_learns_that_its_invitation_is_over() -> None:
    now = [1999.0]
    ours = admission("invited", now, {}, GIVEN)
    ours.ensure()
    now[0] = 2000.0
    with pytest.raises(JoinRefused, match="expired on 1970-01-01 00:33 UTC") as refused:
        ours.ensure()
    assert "--invitation" in refused.value.fix
    admission("open", now, {}, GIVEN).ensure()


def test_status_tells_who_is_admitted_and_until_when_we_are() -> None:
    assert admission("invited", [NOW], {}, GIVEN).report(2, 3) == AdmissionStatus(
        kind="invited", until="1970-01-01 00:33 UTC", proven=2, left_out=3
    )
    assert admission("open", [NOW], {}, None).report(0, 0) == AdmissionStatus("open", None, 0, 0)
