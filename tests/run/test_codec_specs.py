from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.codec.lattice.codec import Modulo
from peer.codec.registry import EVERY
from peer.run.codec_specs import FORMS, KINDS, WHY, result_codec_for
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
    assert used == FORMS.keys()
    for name in used:
        SyncSection.model_validate({"codec": name})
    assert KINDS.keys() == WHY.keys()


@pytest.mark.parametrize("name", KINDS["pseudo_gradient"])
def test_the_results_codec_of_its_own_accord_is_allowed_and_not_narrower(name: str) -> None:
    result = result_codec_for(name)
    assert result in KINDS["result"]
    assert FORMS[result].bits >= FORMS[name].bits
