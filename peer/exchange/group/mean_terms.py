"""How a group's mean is computed and encoded; the same for all members."""

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
    shard. Empty: no mean is radial."""

    def cut(self, roster: Roster, elements: int) -> list[Shard]:
        """Return the shards of a round's fragment. `elements`: of the fragment."""
        names = (self.codec.name, self.result_codec.name)
        align = max(ALIGN, *(FORMS[name].chunk for name in names if name in FORMS))
        return cut(roster.name(), roster.owners, elements, align, self.tensors_in(roster.key.fragment))

    def owner_nbytes(self, elements: int, members: int) -> int:
        """Return an upper bound on the sum of the bytes that a shard's owner receives and sends in a round, in a group
        of `members` members. Each member sends the owner its part of the shard and gets the result, and a shard is
        1/members of the fragment."""
        return self.codec.nbytes(elements) + result_nbytes(self.result_codec.name, elements, members)

    def tensors_in(self, fragment: int) -> tuple[Span, ...]:
        return self.tensors[fragment] if self.tensors else ()

    def tensors_of(self, fragment: int, shard: Shard) -> list[Span]:
        """Return the radial tensors of a shard, as spans of elements within the shard."""
        within = ((start, end) for start, end in self.tensors_in(fragment) if shard.start <= start < shard.end)
        return [(start - shard.start, end - shard.start) for start, end in within]
