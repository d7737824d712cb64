"""Error feedback: the part of an update that a codec drops in one round is sent in a later one."""

from __future__ import annotations

import torch

from peer.codec.error_feedback import ErrorFeedback
from peer.codec.topk import TOPK


def test_of_an_update_in_parts_the_loss_is_kept_where_it_got_through_and_all_of_it_elsewhere() -> None:
    update = torch.randn(3 * 4096, generator=torch.Generator().manual_seed(3))
    feedback = ErrorFeedback(TOPK, decay=1.0)
    wanted = feedback.add_to_(update.clone())
    assert torch.equal(wanted, update), "nothing was lost yet"
    feedback.settle(wanted, [(0, 4096), (8192, 12288)])
    again = feedback.add_to_(torch.zeros_like(update))
    assert torch.equal(again[4096:8192], update[4096:8192])
    first = TOPK.decode(TOPK.encode(update[:4096]), 4096)
    assert torch.equal(again[:4096], update[:4096] - first)


def test_what_is_sent_adds_up_to_the_updates_while_rounds_fail_now_and_then() -> None:
    feedback, rng = ErrorFeedback(TOPK, decay=1.0), torch.Generator().manual_seed(5)
    sent, given = torch.zeros(4096), torch.zeros(4096)
    for round_ in range(200):
        update = torch.randn(4096, generator=rng) + 0.5
        wanted = feedback.add_to_(update.clone())
        given += update
        if round_ % 7 == 3:
            given -= update  # a round without a roster: the work stays with the trainer
            continue
        sent += TOPK.decode(TOPK.encode(wanted), 4096)
        feedback.settle(wanted, [(0, 4096)])
    left = feedback.add_to_(torch.zeros(4096))
    assert torch.allclose(sent + left, given, atol=1e-2)
