"""With error feedback, what is not sent now is sent later."""

from __future__ import annotations

import pytest
import torch

from peer.codec.blocks import E3M0, INT4
from peer.codec.feedback import encode_with_feedback
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
