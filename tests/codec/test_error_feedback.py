"""With error feedback, what is not sent now is sent later."""

from __future__ import annotations

import pytest
import torch

from peer.codec.blocks import E3M0, INT4
from peer.codec.error_feedback import Feedback, encode_with_feedback
from peer.codec.plain import Codec
from peer.codec.topk import TOPK


@pytest.mark.parametrize("codec", [TOPK, INT4, E3M0], ids=lambda codec: str(codec.name))
def test_sent_and_residual_add_up_to_the_updates(codec: Codec) -> None:
    random = torch.Generator().manual_seed(0)
    wanted, sent, residual = torch.zeros(5000), torch.zeros(5000), torch.zeros(5000)
    for _ in range(10):
        update = torch.randn(5000, generator=random)
        payload, residual = encode_with_feedback(codec, update, residual)
        wanted += update
        sent += codec.decode(payload, 5000)
    assert torch.allclose(sent + residual, wanted, atol=1e-4)


def test_a_constant_update_gets_through_in_time() -> None:
    update = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    sent, residual = torch.zeros(4096), torch.zeros(4096)
    for _ in range(400):
        payload, residual = encode_with_feedback(TOPK, update, residual)
        sent += TOPK.decode(payload, 4096)
    assert float((sent / 400 - update).norm() / update.norm()) < 0.15


def test_the_arguments_are_left_alone_and_decay_is_of_the_residual() -> None:
    update, residual = torch.zeros(300), torch.full((300,), 2.0)
    payload, left = encode_with_feedback(INT4, update, residual, decay=0.5)
    assert torch.equal(INT4.decode(payload, 300), torch.ones(300))
    assert torch.equal(left, torch.zeros(300))
    assert torch.equal(update, torch.zeros(300))
    assert torch.equal(residual, torch.full((300,), 2.0))


def test_of_an_update_in_parts_the_loss_is_kept_where_it_got_through_and_all_of_it_elsewhere() -> None:
    update = torch.randn(3 * 4096, generator=torch.Generator().manual_seed(3))
    feedback = Feedback(TOPK, decay=1.0)
    wanted = feedback.added_(update.clone())
    assert torch.equal(wanted, update), "nothing was lost yet"
    feedback.settle(wanted, [(0, 4096), (8192, 12288)])
    again = feedback.added_(torch.zeros_like(update))
    assert torch.equal(again[4096:8192], update[4096:8192])
    first = TOPK.decode(TOPK.encode(update[:4096]), 4096)
    assert torch.equal(again[:4096], update[:4096] - first)


def test_what_is_sent_adds_up_to_the_updates_while_rounds_fail_now_and_then() -> None:
    feedback, rng = Feedback(TOPK, decay=1.0), torch.Generator().manual_seed(5)
    sent, given = torch.zeros(4096), torch.zeros(4096)
    for round_ in range(200):
        update = torch.randn(4096, generator=rng) + 0.5
        wanted = feedback.added_(update.clone())
        given += update
        if round_ % 7 == 3:
            given -= update  # no roster: the work stays with the trainer, and nothing is settled
            continue
        sent += TOPK.decode(TOPK.encode(wanted), 4096)
        feedback.settle(wanted, [(0, 4096)])
    left = feedback.added_(torch.zeros(4096))
    assert torch.allclose(sent + left, given, atol=1e-2)
