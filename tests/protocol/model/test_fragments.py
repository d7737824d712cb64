from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocol.model.fragments import PATTERNS, block_of, block_spans, cut, cut_problem
from peer.protocol.model.layout import Layout, TensorSpec


def model(blocks: int, *, widths: tuple[int, ...] = (4, 2)) -> list[TensorSpec]:
    """Return an embedding, blocks of two tensors each, and a last norm."""
    inside = [
        TensorSpec(f"model.layers.{block}.{kind}.weight", (width,))
        for block in range(blocks)
        for kind, width in zip("ab", widths, strict=True)
    ]
    return [TensorSpec("model.embed.weight", (10, 3)), *inside, TensorSpec("model.norm.weight", (3,))]


def contents(layout: Layout) -> list[list[str]]:
    """Return the contents of each fragment: blocks by number, other tensors by name."""
    found = []
    for first, end in layout.fragments:
        names = (tensor.name for tensor in layout.tensors[first:end])
        marks = (name if block_of(name) is None else str(block_of(name)) for name in names)
        found.append(list(dict.fromkeys(marks)))
    return found


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.3.mlp.up_proj.weight", 3),
        ("h.11.attn.weight", 11),
        ("model.layers.2.experts.7.weight", 2),
        ("model.embed_tokens.weight", None),
        ("lm_head.weight", None),
        ("model.norm2.weight", None),
        ("model.layers.3", None),
    ],
)
def test_blocks_are_known_by_the_tensors_names(name: str, block: int | None) -> None:
    assert block_of(name) == block


def test_the_patterns_on_six_blocks() -> None:
    outside = ["model.embed.weight", "model.norm.weight"]
    assert contents(cut(model(6), fragments=1, pattern="whole")) == [[outside[0], *"012345", outside[1]]]
    sequential = cut(model(6), fragments=2, pattern="sequential")
    assert contents(sequential) == [[outside[0], "0", "1", "2", outside[1]], ["3", "4", "5"]]
    strided = cut(model(6), fragments=3, pattern="strided")
    assert contents(strided) == [[outside[0], "0", "3", outside[1]], ["1", "4"], ["2", "5"]]
    apart = cut(model(6), fragments=3, pattern="strided", apart=True)
    assert contents(apart) == [["0", "2", "4"], ["1", "3", "5"], outside]


def test_uneven_blocks_differ_by_one_at_most() -> None:
    assert contents(cut(model(7), fragments=3, pattern="sequential", apart=False))[1:] == [["3", "4"], ["5", "6"]]
    assert contents(cut(model(7), fragments=3, pattern="strided", apart=False))[1:] == [["1", "4"], ["2", "5"]]


def test_blocks_go_by_number_not_by_name_or_place() -> None:
    shuffled = model(12)[::-1]
    assert contents(cut(shuffled, fragments=2, pattern="sequential"))[1] == ["11", "10", "9", "8", "7", "6"]


def test_balanced_puts_the_largest_where_there_is_least() -> None:
    sizes = {"a": 7, "b": 5, "c": 4, "d": 4, "e": 1}
    layout = cut([TensorSpec(n, (s,)) for n, s in sizes.items()], fragments=2, pattern="balanced")
    names = [[t.name for t in layout.tensors[first:end]] for first, end in layout.fragments]
    assert names == [["a", "d"], ["b", "c", "e"]]


TENSORS = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(0, 40)), st.integers(1, 1000)), min_size=1, max_size=60
).map(
    lambda drawn: [
        TensorSpec(f"top{i}.weight" if block is None else f"layers.{block}.t{i}.weight", (size,))
        for i, (block, size) in enumerate(drawn)
    ]
)


@given(TENSORS, st.integers(1, 12), st.sampled_from(PATTERNS), st.booleans())
def test_a_cut_has_every_tensor_once_and_no_empty_fragment(
    tensors: list[TensorSpec], fragments: int, pattern: str, apart: bool
) -> None:
    if cut_problem(tensors, fragments=fragments, pattern=pattern, apart=apart):
        with pytest.raises(AssertionError):
            cut(tensors, fragments=fragments, pattern=pattern, apart=apart)
        return
    layout = cut(tensors, fragments=fragments, pattern=pattern, apart=apart)
    assert sorted(layout.tensors, key=lambda t: t.name) == sorted(tensors, key=lambda t: t.name)
    assert [first for first, _ in layout.fragments] == [0, *(end for _, end in layout.fragments[:-1])]
    assert layout.fragments[-1][1] == len(tensors)
    assert all(first < end for first, end in layout.fragments)
    order = {tensor: place for place, tensor in enumerate(tensors)}
    for first, end in layout.fragments:
        places = [order[tensor] for tensor in layout.tensors[first:end]]
        assert places == sorted(places)
    if apart:
        first, end = layout.fragments[-1]
        outside = {tensor for tensor in tensors if block_of(tensor.name) is None}
        assert set(layout.tensors[first:end]) == outside


@given(TENSORS, st.integers(1, 12), st.sampled_from(["sequential", "strided"]))
def test_no_block_is_torn_and_none_has_two_more_than_another(
    tensors: list[TensorSpec], fragments: int, pattern: str
) -> None:
    if cut_problem(tensors, fragments=fragments, pattern=pattern):
        return
    layout = cut(tensors, fragments=fragments, pattern=pattern)
    held = [{block_of(t.name) for t in layout.tensors[a:b]} - {None} for a, b in layout.fragments]
    assert sum(map(len, held)) == len(set().union(*held))
    assert max(map(len, held)) - min(map(len, held)) <= 1


@given(TENSORS, st.integers(1, 12))
def test_the_largest_balanced_fragment_is_bounded(tensors: list[TensorSpec], fragments: int) -> None:
    if cut_problem(tensors, fragments=fragments, pattern="balanced"):
        assert fragments > len(tensors)
        return
    layout = cut(tensors, fragments=fragments, pattern="balanced")
    sizes = [layout.fragment_elements(fragment) for fragment in range(fragments)]
    assert max(sizes) <= layout.elements / fragments + max(tensor.elements for tensor in tensors)


@pytest.mark.parametrize(
    ("fragments", "pattern", "apart", "words"),
    [
        (4, "sequential", False, "3 blocks"),
        (4, "strided", False, "3 blocks"),
        (5, "strided", True, "3 blocks"),
        (9, "balanced", False, "8 tensors"),
        (8, "balanced", True, "6 tensors"),
        (1, "strided", True, "takes two"),
        (2, "whole", False, "one fragment"),
    ],
)
def test_what_cannot_be_cut_says_why(fragments: int, pattern: str, apart: bool, words: str) -> None:
    assert words in cut_problem(model(3), fragments=fragments, pattern=pattern, apart=apart)


def test_a_model_of_blocks_only_has_nothing_to_set_apart() -> None:
    blocks = [tensor for tensor in model(3) if block_of(tensor.name) is not None]
    assert "nothing outside" in cut_problem(blocks, fragments=3, pattern="strided", apart=True)


def test_the_digest_tells_orders_and_cuts_apart() -> None:
    tensors = model(6)
    layouts = [cut(tensors, fragments=2, pattern=pattern) for pattern in ("sequential", "strided", "balanced")]
    layouts += [cut(tensors, fragments=3, pattern="strided", apart=apart) for apart in (False, True)]
    whole = Layout.whole(tensors)
    other_order = whole.arranged([tensor.name for tensor in layouts[1].tensors], whole.fragments)
    assert len({layout.digest() for layout in [*layouts, whole, other_order]}) == 7


def test_the_cut_is_the_same_for_ever() -> None:
    """Peers of other versions and machines have to agree, so a change here is a change of the wire protocol."""
    found = {
        pattern: cut(model(5, widths=(7, 3)), fragments=3, pattern=pattern).digest().hex()[:16]
        for pattern in PATTERNS[1:]
    }
    assert found == {
        "sequential": "e9a77e9006585dd2",
        "strided": "b430ab14e76f6cc2",
        "balanced": "4de727fbb08cfd00",
    }


def test_a_layout_in_another_order_needs_exactly_its_names() -> None:
    layout = Layout.whole(model(1))
    names = [tensor.name for tensor in layout.tensors]
    assert layout.arranged(names, layout.fragments) == layout
    with pytest.raises(AssertionError):
        layout.arranged(names[:-1], layout.fragments)
    with pytest.raises(AssertionError):
        layout.arranged([*names[:-1], "other"], layout.fragments)


def test_the_spans_of_the_blocks_are_those_of_their_tensors_within_the_fragment() -> None:
    tensors = [
        TensorSpec("embed", (5,)),
        TensorSpec("h.0.a", (2, 3)),
        TensorSpec("h.1.a", (7,)),
        TensorSpec("out", (4,)),
    ]
    whole = cut(tensors, fragments=1, pattern="whole")
    assert block_spans(whole, 0) == ((5, 11), (11, 18))
    halves = cut(tensors, fragments=2, pattern="strided")
    assert [tensor.name for tensor in halves.tensors] == ["embed", "h.0.a", "out", "h.1.a"]
    assert [block_spans(halves, fragment) for fragment in (0, 1)] == [((5, 11),), ((0, 7),)]
    apart = cut(tensors, fragments=2, pattern="strided", apart=True)
    assert [block_spans(apart, fragment) for fragment in (0, 1)] == [((0, 6), (6, 13)), ()]
