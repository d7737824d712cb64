from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from peer.errors import ManifestError, UsageError
from peer.run.overrides import apply_overrides, dump

TEXT = "format = 1\n[sync]\nsync_every = 5\n"


def test_a_number_of_more_digits_than_python_prints_is_written_and_no_crash() -> None:
    digits = "f" * 4000
    derived = apply_overrides(TEXT, [f"seed=0x{digits}"])
    assert tomllib.loads(derived)["seed"] == int(digits, 16)


@given(st.integers(-(2**70), 2**5000))
def test_every_integer_is_written_and_read_again(value: int) -> None:
    assert tomllib.loads(dump({"a": value})) == {"a": value}


@given(st.sampled_from(["sync_every", "seed", "name", "model.hidden_size", "nonsense"]), st.text(max_size=40))
def test_any_value_is_set_or_refused(key: str, value: str) -> None:
    try:
        derived = apply_overrides(TEXT, [f"{key}={value}"])
    except (UsageError, ManifestError):
        return
    assert apply_overrides(derived, []) == derived
