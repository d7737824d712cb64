"""The lattice codec: values decoded from low bits and the receiver's own values equal those sent, or their block is
reported."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from peer.codec.blocks import BLOCK
from peer.codec.lattice.codec import MULTIPLIERS, Modulo, count_blocks, decode_request, encode_request
from peer.codec.plain import BF16, TILE
from peer.errors import BadPayload

HUGE = torch.finfo(torch.float32).max
EVERY_BITS = range(3, 9)


def normal(elements: int, seed: int = 0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def steps_of(payload: bytes, elements: int) -> Tensor:
    """Return the step of each element as sent."""
    blocks = count_blocks(elements)
    steps = torch.frombuffer(bytearray(payload[: 2 * blocks]), dtype=torch.bfloat16) if blocks else torch.empty(0)
    return steps.to(torch.float32).repeat_interleave(BLOCK)[:elements]


def mended(codec: Modulo, sent: Tensor, payload: bytes, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return the receiver's values after its request was answered, and the blocks that it requested."""
    values, failed = codec.decode(payload, own)
    wanted = decode_request(encode_request(failed), len(sent))
    codec.decode_blocks_(values, payload, wanted, codec.encode_blocks(sent, payload, wanted))
    return values, failed


def check_bound(payload: bytes, sent: Tensor, decoded: Tensor) -> None:
    """Check that errors are at most half a step, and that blocks with a zero step decode to zero."""
    bound = steps_of(payload, len(sent)) * (0.5 + 2**-9) + 2.0**-134
    assert bool(((decoded.double() - sent.double()).abs() <= bound.double()).all())


@pytest.mark.parametrize("bits", EVERY_BITS)
@pytest.mark.parametrize("elements", [0, 1, 7, 127, 128, 129, 5000])
def test_within_the_spread_nothing_is_asked_for(bits: int, elements: int) -> None:
    sent, codec = normal(elements), Modulo(bits)
    own = sent + 0.1 * (2 * torch.rand(elements, generator=torch.Generator().manual_seed(1)) - 1)
    payload = codec.encode(sent, 0.1)
    assert len(payload) == codec.nbytes(elements) == -(-elements * bits // 8) + 4 * -(-elements // 128)
    values, failed = codec.decode(payload, own)
    assert not bool(failed.any())
    check_bound(payload, sent, values)
    if elements >= 128:
        largest_step = 0.1 / (2 ** (bits - 1) - 1)
        assert float((values - sent).abs().max()) <= largest_step * (0.5 + 2**-7)


@pytest.mark.parametrize("bits", EVERY_BITS)
def test_at_the_very_edge_of_the_spread(bits: int) -> None:
    sent, codec = normal(12_800), Modulo(bits)
    for side in (-0.0625, 0.0625):
        assert not bool(codec.decode(codec.encode(sent, 0.0625), sent + side)[1].any())


@pytest.mark.parametrize("bits", EVERY_BITS)
def test_beyond_the_spread_blocks_are_listed_and_mended(bits: int) -> None:
    sent, codec = normal(100 * BLOCK + 5), Modulo(bits)
    own = sent.clone()
    own[::1000] += 1.0
    payload = codec.encode(sent, 0.125)
    values, failed = codec.decode(payload, own)
    expected = torch.zeros(101, dtype=torch.bool)
    expected[torch.arange(0, len(sent), 1000) // BLOCK] = True
    assert torch.equal(failed, expected)
    in_failed = failed.repeat_interleave(BLOCK)[: len(sent)]
    assert torch.equal(values[in_failed], own[in_failed]), "what is not known is the receiver's own"
    whole, _ = mended(codec, sent, payload, own)
    check_bound(payload, sent, whole)


def test_what_is_decoded_does_not_depend_on_the_receiver() -> None:
    sent, codec = normal(1000), Modulo(6)
    payload = codec.encode(sent, 0.1)
    near, _ = mended(codec, sent, payload, sent)
    far, failed = mended(codec, sent, payload, normal(1000, 9) * 1e10)
    assert bool(failed.all())
    assert torch.equal(near, far)


@pytest.mark.parametrize("bits", EVERY_BITS)
@pytest.mark.parametrize("spread", [0.0, 2.0**-149, 1e-3, 1.0, 1e6, HUGE])
def test_whatever_the_spread_blocks_are_right_or_listed(bits: int, spread: float) -> None:
    sent, codec = normal(2000, 3), Modulo(bits)
    payload = codec.encode(sent, spread)
    whole, _ = mended(codec, sent, payload, sent + 0.05 * normal(2000, 4))
    check_bound(payload, sent, whole)
    coarsest = sent.abs().max() / (2 ** (bits - 1) - 1)
    assert float((whole - sent).abs().max()) <= float(coarsest) * (0.5 + 2**-7), "never coarser than plain rounding"


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers), max_size=300), st.integers(3, 8), st.floats(0, HUGE, width=32))
def test_property_right_or_listed(pairs: list[tuple[float, float]], bits: int, spread: float) -> None:
    codec = Modulo(bits)
    sent, own = (torch.tensor([pair[i] for pair in pairs], dtype=torch.float32) for i in (0, 1))
    payload = codec.encode(sent, spread)
    values, failed = codec.decode(payload, own)
    known = ~failed.repeat_interleave(BLOCK)[: len(sent)]
    exact, _ = mended(codec, sent, payload, sent)
    assert torch.equal(values[known], exact[known])
    whole, _ = mended(codec, sent, payload, own)
    assert torch.equal(whole, exact)
    check_bound(payload, sent, exact)


def test_wrong_guesses_are_found_by_the_check() -> None:
    """10,000 blocks with a few or many values beyond the window: one in 65,536 may be missed."""
    codec, slipped = Modulo(5), 0
    sent = normal(10_000 * BLOCK)
    payload = codec.encode(sent, 0.0625)
    for share in (0.01, 0.5):
        far = torch.rand(len(sent), generator=torch.Generator().manual_seed(2)) < share
        own = torch.where(far, sent + 0.125 * normal(len(sent), 5).sign(), sent)
        values, failed = codec.decode(payload, own)
        wrong = ((values - sent).abs() > 0.0625).view(-1, BLOCK).any(1) & ~failed
        slipped += int(wrong.sum())
        assert float(failed.float().mean()) > 0.7
    assert slipped <= 2


def test_one_wrong_high_part_or_two_that_are_off_by_one_are_always_found() -> None:
    multipliers = MULTIPLIERS.tolist()
    assert len(multipliers) == BLOCK
    assert all(multiplier % 2 for multiplier in multipliers)
    assert all((a + b) % 2**16 and (a - b) % 2**16 for a, b in itertools.combinations(multipliers, 2))


def test_everything_asked_for_is_less_than_bf16_and_the_finest_step_much_finer() -> None:
    sent, codec = normal(128_000), Modulo(7)
    payload = codec.encode(sent, 0.0)
    far = normal(128_000, 1)
    request = encode_request(codec.decode(payload, far)[1])
    answer = codec.encode_blocks(sent, payload, decode_request(request, len(sent)))
    assert len(payload) + len(request) + len(answer) < BF16.nbytes(len(sent))
    whole, failed = mended(codec, sent, payload, far)
    assert bool(failed.all())
    error = (whole - sent).norm()
    assert float(error) < 0.1 * float((BF16.decode(BF16.encode(sent), len(sent)) - sent).norm())


@pytest.mark.parametrize("largest", [2.0**-149, 2.0**-130, 1e-38, 1e38, HUGE])
@pytest.mark.parametrize("bits", [3, 7])
def test_denormal_and_huge_values(bits: int, largest: float) -> None:
    codec, sent = Modulo(bits), (normal(5000) / 3).clamp(-1, 1) * largest
    sent[0], sent[-1] = largest, -largest
    for spread in (0.0, largest / 16, largest):
        payload = codec.encode(sent, spread)
        for own in (sent, torch.zeros_like(sent), -sent, torch.full_like(sent, HUGE)):
            whole, _ = mended(codec, sent, payload, own)
            assert bool(whole.isfinite().all())
            check_bound(payload, sent, whole)


def test_zeros_need_nothing_of_the_receiver() -> None:
    codec = Modulo(7)
    values, failed = codec.decode(codec.encode(torch.zeros(300), 1.0), normal(300) * 1e6)
    assert not bool(failed.any())
    assert not bool(values.any())


def test_tiles_do_not_show() -> None:
    codec = Modulo(7)
    part = normal(TILE)
    sent = torch.cat([part, part, part[:77]])
    own = sent + 0.1 * (torch.cat([part, part, part[:77]]) > 3)
    payload, alone = codec.encode(sent, 0.001), codec.encode(part, 0.001)
    values, failed = codec.decode(payload, own)
    assert 0 < int(failed.sum()) < len(failed)
    assert torch.equal(values[:TILE], codec.decode(alone, own[:TILE])[0])
    assert torch.equal(values[TILE : 2 * TILE], values[:TILE])
    whole, _ = mended(codec, sent, payload, own)
    assert torch.equal(whole[TILE : 2 * TILE], whole[:TILE])
    check_bound(payload, sent, whole)


def test_a_spread_for_each_block() -> None:
    sent, codec = normal(2 * BLOCK + 1), Modulo(5)
    payload = codec.encode(sent, torch.tensor([0.05, 0.1, 0.5]))
    steps = steps_of(payload, len(sent))[::BLOCK]
    assert torch.allclose(steps[:2], torch.tensor([0.05, 0.1]) / 15, rtol=2**-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_not_sent_nor_compared_with(bad: float) -> None:
    codec, fine = Modulo(7), normal(300)
    values = fine.clone()
    values[200] = bad
    with pytest.raises(AssertionError, match="not finite"):
        codec.encode(values, 0.1)
    with pytest.raises(AssertionError, match="not finite"):
        codec.decode(codec.encode(fine, 0.1), values)
    with pytest.raises(AssertionError):
        codec.encode(fine, bad)
    with pytest.raises(AssertionError):
        codec.encode(fine, -1.0)


# -- hostile bytes -----------------------------------------------------------------------------------------------------


def test_hostile_payloads_are_refused_or_finite() -> None:
    codec, sent, own = Modulo(6), normal(700), normal(700, 1)
    good, random = codec.encode(sent, 0.5), torch.Generator().manual_seed(7)
    refused = listed = 0
    for _ in range(300):
        payload = torch.frombuffer(bytearray(good), dtype=torch.uint8)
        place = torch.randint(0, len(payload), (1,), generator=random)
        payload[place] = torch.randint(0, 256, (1,), generator=random, dtype=torch.uint8)
        try:
            values, failed = codec.decode(payload.numpy().tobytes(), own)
        except BadPayload as error:
            refused += error.code == "scale"
            continue
        listed += int(failed.any())
        assert bool(values.isfinite().all())
    assert listed > 200
    assert 0 < refused < 20


@pytest.mark.parametrize("step", [0x7F80, 0xFF80, 0x7FC0, 0xBF80])
def test_a_step_that_cannot_be_is_refused(step: int) -> None:
    codec = Modulo(7)
    payload = step.to_bytes(2, "little") + codec.encode(normal(100), 0.1)[2:]
    with pytest.raises(BadPayload) as caught:
        codec.decode(payload, normal(100))
    assert caught.value.code == "scale"


def test_the_largest_step_with_any_bits_stays_finite() -> None:
    codec, step = Modulo(7), (0x7F7F).to_bytes(2, "little")
    payload = step + codec.encode(normal(100), 0.1)[2:]
    values, failed = codec.decode(payload, normal(100))
    assert bool(values.isfinite().all())
    assert bool(failed.all())
    highs = 127 * int(MULTIPLIERS.sum()) % 2**16
    payload = step + highs.to_bytes(2, "little") + payload[4:]
    codec.decode_blocks_(values, payload, failed, b"\x7f" * 128)
    assert float(values.max()) == HUGE


@pytest.mark.parametrize("elements", [0, 8, 5000])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_refused(elements: int, change: int) -> None:
    codec = Modulo(7)
    payload = codec.encode(torch.ones(elements), 0.1)
    wrong = payload[:change] if change < 0 else payload + b"\0"
    if wrong == payload:
        return
    with pytest.raises(BadPayload, match="length"):
        codec.decode(wrong, torch.ones(elements))


def test_answers_that_are_not_what_was_sent_are_refused() -> None:
    codec, sent = Modulo(7), normal(1000)
    payload = codec.encode(sent, 0.01)
    values, failed = codec.decode(payload, sent + 1)
    assert bool(failed.all())
    answer = codec.encode_blocks(sent, payload, failed)
    for wrong in (answer[:-1], answer + b"\0", answer[128:], b""):
        with pytest.raises(BadPayload, match="length"):
            codec.decode_blocks_(values.clone(), payload, failed, wrong)
    for place in (0, 500, 1023):
        changed = bytearray(answer)
        changed[place] ^= 4
        with pytest.raises(BadPayload, match="check"):
            codec.decode_blocks_(values.clone(), payload, failed, changed)


@pytest.mark.parametrize(
    ("request_", "elements", "code"),
    [
        (b"", 1, "length"),
        (b"\0", 0, "length"),
        (b"\0\0", 1024, "length"),
        (b"\x02", 128, "index"),
        (b"\x80", 890, "index"),
    ],
)
def test_requests_for_what_is_not_there_are_refused(request_: bytes, elements: int, code: str) -> None:
    with pytest.raises(BadPayload) as caught:
        decode_request(request_, elements)
    assert caught.value.code == code


@pytest.mark.parametrize("elements", [0, 1, 128, 129, 1024, 1025, 9999])
def test_a_request_is_read_as_it_was_written(elements: int) -> None:
    wanted = torch.rand(count_blocks(elements), generator=torch.Generator().manual_seed(elements)) < 0.5
    assert torch.equal(decode_request(encode_request(wanted), elements), wanted)


def test_golden_bytes() -> None:
    sent = torch.tensor([1.0, -2.5, 0.75])
    payload = Modulo(7).encode(sent, 0.5)
    # a step of 0.5 / 63 rounded up; 126, -313 and 94.5 (to even) of it
    assert steps_of(payload, 1).item() == 0.00799560546875
    first, second, third = 125, -313, 94
    low = [q % 128 for q in (first, second, third)]
    stream = low[0] | low[1] << 7 | low[2] << 14
    check = sum(int(m) * (q >> 7) for m, q in zip(MULTIPLIERS, (first, second, third), strict=False)) % 2**16
    assert payload[2:] == check.to_bytes(2, "little") + stream.to_bytes(3, "little")
    assert payload.hex() == "033c" + payload[2:].hex()
