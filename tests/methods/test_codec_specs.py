from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.codec.lattice.codec import Modulo
from peer.codec.registry import EVERY
from peer.methods.codec_specs import FORMS, KINDS, SPARSE, WHY, largest_result, result_codec_for, result_nbytes
from peer.run.sections import SyncSection

OWN = {name: codec.nbytes for name, codec in EVERY.items()} | {f"modulo{bits}": Modulo(bits).nbytes for bits in (6, 7)}


def test_every_codec_has_its_form_here_and_the_other_way_round() -> None:
    assert FORMS.keys() == OWN.keys()


@given(st.sampled_from(sorted(OWN)), st.one_of(st.integers(0, 10_000), st.integers(0, 2**40)))
def test_bytes_are_the_codecs_own(name: str, elements: int) -> None:
    assert FORMS[name].nbytes(elements) == OWN[name](elements)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_bits_are_those_of_a_long_payload(name: str) -> None:
    assert FORMS[name].bits == pytest.approx(8 * FORMS[name].nbytes(2**30) / 2**30)


def test_a_manifest_may_name_each_codec_that_fits_somewhere() -> None:
    used = {codec for kind in KINDS.values() for codec in kind}
    assert used == FORMS.keys() | {SPARSE}
    for name in FORMS:
        SyncSection.model_validate({"codec": name})
    for name in KINDS["result"]:
        SyncSection.model_validate({"result_codec": name})
    assert KINDS.keys() == WHY.keys()


@pytest.mark.parametrize("name", KINDS["pseudo_gradient"])
def test_the_results_codec_of_its_own_accord_is_allowed_and_not_narrower(name: str) -> None:
    result = result_codec_for(name)
    assert result in KINDS["result"]
    assert FORMS[result].bits >= FORMS[name].bits


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_a_sparse_result_is_bounded_and_never_larger_than_a_dense_one_of_half_precision(e: int, parts: int) -> None:
    usual, most = result_nbytes(SPARSE, e, parts), largest_result(SPARSE, e, parts)
    assert 0 < usual <= most <= result_nbytes("int8", e, parts) + -(-e // 8)
    assert result_nbytes("fp16", e, parts) == FORMS["fp16"].nbytes(e) == largest_result("fp16", e, parts)
