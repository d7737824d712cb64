from __future__ import annotations

import json

from peer.protocol.messages import PeerId, RoundKey
from peer.protocol.pair.receipt import ShownReceipt, SwapOpinion, SwapStatement, Transferred
from peer.protocol.summary.board import RECENT, ContributionBoard
from tests.support.signed_receipts import RUN


def receipt(of: str, by: str, round_: int, *, accepted: bool = True) -> ShownReceipt:
    payload = Transferred(b"d" * 32, 100)
    opinion = SwapOpinion(1, accepted=accepted)
    statement = SwapStatement(RUN, RoundKey(round_, 0), PeerId(by), PeerId(of), payload, payload, opinion)
    return ShownReceipt(statement, b"s" * 64)


def test_each_swap_counts_once_and_only_what_was_accepted() -> None:
    board = ContributionBoard()
    first = [receipt("a", "b", 1), receipt("a", "c", 2), receipt("a", "c", 3, accepted=False)]
    board.take(PeerId("a"), "home", first)
    board.take(PeerId("a"), "home", first)
    board.take(PeerId("a"), "home", [receipt("x", "b", 9)])
    assert board.report() == [{"peer_id": "a", "exchanges": 2, "bytes": 400, "partners": 2}]


def test_an_old_swap_does_not_count_again_when_it_is_no_longer_remembered() -> None:
    board = ContributionBoard()
    for round_ in range(2 * RECENT):
        board.take(PeerId("a"), "home", [receipt("a", "b", round_)])
    for round_ in range(2 * RECENT):
        board.take(PeerId("a"), "home", [receipt("a", "b", round_)])
    assert board.exchanges(PeerId("a")) == 2 * RECENT


def test_a_thousand_keys_of_one_block_push_no_home_off_the_board() -> None:
    board = ContributionBoard(most=16)
    homes = [PeerId(f"home {number}") for number in range(4)]
    for home in homes[:3]:
        board.take(home, home, [receipt(home, "b", 1)])
    for number in range(1000):
        board.take(PeerId(f"key {number}"), "block", [receipt(f"key {number}", "b", round_) for round_ in (1, 2, 3)])
    board.take(homes[3], homes[3], [receipt(homes[3], "b", 1)])
    assert len(board) == 16
    assert all(board.exchanges(home) == 1 for home in homes)


def test_it_goes_on_from_what_was_kept() -> None:
    board, after = ContributionBoard(), ContributionBoard()
    board.take(PeerId("a"), "home", [receipt("a", "b", 1), receipt("a", "c", 2)])
    after.restore(json.loads(json.dumps(board.kept())))
    after.take(PeerId("a"), "home", [receipt("a", "b", 1), receipt("a", "c", 3)])
    assert after.report() == [{"peer_id": "a", "exchanges": 3, "bytes": 600, "partners": 2}]
