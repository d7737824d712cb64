from __future__ import annotations

import torch

from peer.trainer.models.documents import documents_of


def test_a_token_sees_its_own_document_up_to_itself() -> None:
    found = documents_of(torch.tensor([[5, 0, 6, 7, 0, 0, 8], [0, 5, 6, 7, 8, 9, 0]]), 0)
    assert found is not None
    assert found.positions.tolist() == [[0, 1, 0, 1, 2, 0, 0], [0, 0, 1, 2, 3, 4, 5]]
    first = ["1      ", "11     ", "  1    ", "  11   ", "  111  ", "     1 ", "      1"]
    second = ["1      ", " 1     ", " 11    ", " 111   ", " 1111  ", " 11111 ", " 111111"]
    drawn = [["".join("1" if seen else " " for seen in row) for row in window[0]] for window in found.visible.tolist()]
    assert drawn == [first, second]


def test_windows_of_one_document_need_no_mask() -> None:
    assert documents_of(torch.tensor([[5, 6, 7], [5, 6, 0]]), 0) is None, "an end at the end parts nothing"
