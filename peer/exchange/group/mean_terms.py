"""How a group's mean travels and is made: the same for all its members."""

from __future__ import annotations

from dataclasses import dataclass

from peer.codec.plain import Codec
from peer.exchange.group.sparse_result import ResultCodec
from peer.methods.codec_specs import FORMS, result_nbytes
from peer.outer.robust_mean import Weigh, fractions
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import ALIGN, Shard, cut
from peer.protocol.model.fragments import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTerms:
    """The terms of the mean, from the run's method."""

    codec: Codec
    """The codec of contributions."""
    result_codec: ResultCodec
    weigh: Weigh = fractions
    """Maps the tokens of the contributions to their weights."""
    tensors: tuple[tuple[Span, ...], ...] = ()
    """Per fragment: the tensors whose mean is radial (`peer.protocol.group.radial_mean`), ascending. Each lies in one
    shard. Empty: there are none."""

    def cut(self, roster: Roster, elements: int) -> list[Shard]:
        """Return the shards of a round's fragment, which has so many elements."""
        names = (self.codec.name, self.result_codec.name)
        align = max(ALIGN, *(FORMS[name].chunk for name in names if name in FORMS))
        return cut(roster.name(), roster.owners, elements, align, self.tensors_in(roster.key.fragment))

    def owner_nbytes(self, elements: int, members: int) -> int:
        """Return what the owner of a shard takes and gives at most, in a group of so many members: all of them send it
        their part and get their result, each of them a part of the fragment."""
        return self.codec.nbytes(elements) + result_nbytes(self.result_codec.name, elements, members)

    def tensors_in(self, fragment: int) -> tuple[Span, ...]:
        return self.tensors[fragment] if self.tensors else ()

    def tensors_of(self, fragment: int, shard: Shard) -> list[Span]:
        """Return the radial tensors of a shard, in elements of it."""
        within = ((start, end) for start, end in self.tensors_in(fragment) if shard.start <= start < shard.end)
        return [(start - shard.start, end - shard.start) for start, end in within]
