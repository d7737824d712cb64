"""Free keys at a node of the run: their summaries and mutual receipts change no number of the view, and leave room for
others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from peer.node.operator.run_view import RunView
from peer.observe.run_metrics import MOST_PEERS
from peer.observe.status.codec import to_json
from peer.protocol.messages import RoundKey
from peer.protocol.pair.receipt import ReceiptBounds, ShownReceipt, SwapOpinion, SwapStatement, Transferred
from peer.protocol.pair.receipt_chain import BrokenChain, ChainCheck
from peer.protocol.summary.book import MAX_PEERS, PER_BLOCK, RATE, SummaryBook
from peer.transport.signing import holds
from peer.web.public import SHOWN_PEERS
from tests.support.signed_receipts import RUN, Signing, chained, countersigned
from tests.support.summaries import SetClock, shown, signed_summary, view_at

CROWD = "203.0.113.0/24"
PLACES = 128
"""Of the view, in place of `MAX_PEERS`: an eighth, and so are the lines."""
LINES = PLACES * min(SHOWN_PEERS, MOST_PEERS) // MAX_PEERS
YES = SwapOpinion(2**53, accepted=True)
BOUNDS = ReceiptBounds(fragments=4, payload_bytes=10_000, rounds=100)


def signed(by: Signing, of: Signing, round_: int, nbytes: int, fragment: int = 0) -> ShownReceipt:
    payload = Transferred(b"d" * 32, nbytes)
    said = SwapStatement(RUN, RoundKey(round_, fragment), by.id, of.id, payload, payload, YES)
    return ShownReceipt(said, by.signer.sign(said.to_bytes()))


def shared(view: RunView) -> dict[str, Any]:
    """Return the view without the lines that are each peer's own claims."""
    return {name: value for name, value in to_json(view.report()).items() if name != "peers"}


def test_two_keys_that_sign_for_each_other_move_no_number() -> None:
    one, other, honest = Signing(), Signing(), Signing()
    seen = []
    for lies in (False, True):
        view = view_at(SetClock(), furthest=4)
        view.on_summary(honest.id, "home", signed_summary(honest))
        for me, partner in ((one, other), (other, one)):
            receipts = tuple(signed(partner, me, round_, 2**53) for round_ in range(4)) if lies else ()
            assert view.on_summary(me.id, CROWD, signed_summary(me, receipts=receipts)) == ""
        view.tick()
        seen.append(shared(view))
    assert seen[0] == seen[1]


def test_no_number_grows_with_the_keys_of_a_block() -> None:
    honest, seen = [Signing() for _ in range(4)], []
    for keys in (1, 64):
        view = view_at(SetClock(), furthest=1000)
        for number, one in enumerate(honest):
            said = {"loss": 3.0 + number / 10, "tokens_per_s": 50.0}
            view.on_summary(one.id, f"home {number}", signed_summary(one, **said))
        for _ in range(keys):
            liar = Signing()
            lie = {"tokens": 2**53, "tokens_per_s": 2.0**52, "loss": 0.0, "loss_round": 900, "round": 900}
            assert view.on_summary(liar.id, CROWD, signed_summary(liar, **lie)) == ""
        view.tick()
        report = shared(view)
        assert report["totals"].pop("peers") == 4 + keys, "these are keys, and are called so"
        for counts in ("participation_of", "spread_of"):
            report["totals"].pop(counts)
        seen.append(report)
        assert report["totals"]["median_tokens_per_s"] == 50.0
        assert [(point["round"], point["count"]) for point in report["loss"]] == [(8, 4)]
    assert seen[0] == seen[1]


def test_all_the_keys_of_a_block_leave_places_to_newcomers_and_lines_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.node.operator.run_view.SummaryBook", partial(SummaryBook, PLACES, PLACES // 4))
    clock = SetClock()
    view, keys = view_at(clock), [Signing() for _ in range(PLACES)]
    homes = [Signing() for _ in range(3)]
    for number, one in enumerate(homes):
        assert view.on_summary(one.id, f"198.51.{number}.0/24", signed_summary(one)) == ""
    for again in range(4):  # a receipt counts only once its signer's own summary has arrived
        for number, key in enumerate(keys):
            clock.at += 1 / PER_BLOCK.per_s
            receipts = tuple(shown(keys[number - ahead], key, 4 * again + ahead) for ahead in (1, 2, 3))
            told = view.on_summary(key.id, CROWD, signed_summary(key, clock.at, receipts=receipts))
            assert told in ("", RATE)
    newcomers = [Signing() for _ in range(16)]
    for number, one in enumerate(newcomers):
        assert view.on_summary(one.id, f"192.0.{number}.0/24", signed_summary(one, clock.at)) == ""
    first = [line["peer_id"] for line in to_json(view.report())["peers"]]
    assert len(first) <= PLACES
    assert {one.id for one in (*homes, *newcomers)} <= set(first[:LINES])


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        ({"round_": 100}, "100 rounds can have been due"),
        ({"round_": 5, "fragment": 2}, "fragment 1 was due"),
        ({"round_": 4, "nbytes": 10_001}, "10000 at most"),
    ],
)
def test_a_receipt_that_no_swap_can_have_is_refused_where_it_is_read(receipt: dict[str, int], why: str) -> None:
    owner, partner = Signing(), Signing()
    said = {"round_": 4, "nbytes": 10, "fragment": 0} | receipt
    ours = signed(owner, partner, **said).statement
    made = replace(countersigned(owner, partner, 4, YES, YES), own_statement=ours)
    made = replace(made, signature=partner.signer.sign(made.statement.to_bytes()))
    head, entry = chained(owner, [made])
    check = ChainCheck(holds, lambda run: BOUNDS)
    check.take(head)
    with pytest.raises(BrokenChain, match=why):
        check.take(entry)
    assert check.partners == {}


def test_one_signer_signs_one_receipt_a_round() -> None:
    owner, partner = Signing(), Signing()
    receipts = []
    for fragment in (0, 1):
        made = countersigned(owner, partner, 4, YES, YES)
        made = replace(made, own_statement=replace(made.own_statement, key=RoundKey(4, fragment)))
        receipts.append(replace(made, signature=partner.signer.sign(made.statement.to_bytes())))
    check = ChainCheck(holds)
    records = chained(owner, receipts)
    for record in records[:2]:
        check.take(record)
    with pytest.raises(BrokenChain, match="a second receipt for round 4"):
        check.take(records[2])
