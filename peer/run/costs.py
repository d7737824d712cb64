"""The costs of a method with a model, by arithmetic alone: bytes on the wire, the rate they need, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from peer.methods.codec_specs import FORMS, SPARSE, largest_result, result_nbytes
from peer.methods.method import Method
from peer.protocol.group.shards import edges
from peer.protocol.model.fragments import block_spans, is_block_matrix
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.pair.receipt import ReceiptBounds
from peer.protocol.schedule import pairing_window
from peer.run.model_layout import layout_for, tensors_of
from peer.run.sections import LlamaSection, ModelSection, OptimizerSection

FP32 = 4
LARGEST_CHUNK = 4096
"""Elements up to which a codec fills up the last of its chunks."""
DAEMON_BASE = 190 * 2**20
"""Bytes of the daemon without a model: interpreter, libraries, connections. Their files, which the system can drop, are
not in it."""
STREAMED_BYTES = 20 * 10**6
"""Bytes that a payload and everything else of a swap hold, both ways, when it is made and decoded as it goes. With
modulo another half a byte an element is added for the known part of the blocks."""

GROUPED_BYTES = 31 * 10**6
"""Bytes that an exchange of a group holds besides the owner's share, for the codec that needs most."""
SOCKET_FRAMING = 0.003
"""Part that frames and encryption add to a payload, without the packets below them."""
COPIED = ("topk",)
"""Codecs that lose so much of an update that it is kept: then our own values are copied, as for a rule that corrects
them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one peer. It receives as much in a round as it sends."""

    parameters: int
    peers: int
    """Peers that exchange with each other in a round. Assumed to be `max_group` in groups."""
    fragment_bytes: tuple[int, ...]
    """Each way in the round of each fragment: payload, without frames and messages."""
    bytes_per_hour: float | None
    """Each way. None: a clock in steps does not know how long a step takes."""
    peak_within: float
    """Seconds or inner steps, as the clock counts, in which the largest fragment has to cross. 0: nothing does."""
    peak_bits_per_s: float | None
    """Each way. None as above."""
    arena_bytes: int
    """A file that is mapped by daemon and trainer: outer_params and the trainer's snapshots, both fp32."""
    momentum_bytes: int
    """outer_momentum, fp32, where the rule has one. Three times as much more for the own part of eager updates."""
    buffer_bytes: int
    """Buffers into which a partner's values are decoded, or a group's mean, made once. Overlapping exchanges take one
    more each, all of them together no more than the full model."""
    payload_bytes: int
    """The most that an exchange of the largest fragment holds besides: the payloads under way. In groups these are the
    members' contributions to our own shard, and then its result, too. Sparse results are held until they are whole."""
    message_bytes: int = 0
    """Each way in a round, besides the payload."""
    base_bytes: int = DAEMON_BASE

    @property
    def socket_bytes(self) -> tuple[int, ...]:
        """The bytes of each fragment's round at the socket. It leaves out the messages between rounds."""
        return tuple(round(nbytes * (1 + SOCKET_FRAMING)) + self.message_bytes for nbytes in self.fragment_bytes)

    @property
    def bytes_per_sync(self) -> int:
        """Each way in a complete `sync_every`."""
        return sum(self.fragment_bytes)

    @property
    def daemon_bytes(self) -> int:
        """The daemon's own memory at its peak, without the arena. Checkpoints, and copies for joiners, take none: these
        are written to the disk from where the state lies."""
        return self.base_bytes + self.momentum_bytes + self.buffer_bytes + self.payload_bytes

    @property
    def memory_bytes(self) -> int:
        """The daemon's own memory and the arena."""
        return self.daemon_bytes + self.arena_bytes


def cost_of(model: ModelSection, method: Method, tensors: Sequence[TensorSpec] | None = None) -> Cost:
    """Compute the costs. The method must fit the model, as that of a checked manifest does. `tensors`: those of a
    foreign model. While its layout is not here, its fragments are taken for equal ones."""
    layout, parameters = _layout(model, method, tensors), model.parameters
    sizes = _fragments(layout, method, parameters)
    crossing = tuple(exchange_bytes(method, size, method.peers) for size in sizes)
    seconds = method.clock == "seconds"
    within = _within(method)
    return Cost(
        parameters=parameters,
        peers=method.peers,
        fragment_bytes=crossing,
        bytes_per_hour=sum(crossing) * 3600 / method.sync_every if seconds else None,
        peak_within=within,
        peak_bits_per_s=(8 * max(crossing) / within if within else 0.0) if seconds else None,
        arena_bytes=2 * FP32 * parameters,
        momentum_bytes=FP32 * parameters * (method.keeps_momentum + 3 * method.eager),
        buffer_bytes=FP32 * method.vectors * max(sizes) if method.exchanges else 0,
        payload_bytes=_under_way(method, max(sizes), _largest_shard(method, layout, sizes, method.peers), method.peers),
        message_bytes=(method.peers - 1) * method.topology_spec.message_bytes,
    )


def _layout(model: ModelSection, method: Method, tensors: Sequence[TensorSpec] | None) -> Layout | None:
    """Return None while the layout of a foreign model is not here."""
    return None if tensors is None and not isinstance(model, LlamaSection) else layout_for(model, method, tensors)


def _fragments(layout: Layout | None, method: Method, parameters: int) -> list[int]:
    """Return the elements of each fragment."""
    if layout is None:
        return [-(-parameters // method.fragments)] * method.fragments
    return [layout.fragment_elements(fragment) for fragment in range(len(layout.fragments))]


def _largest_shard(method: Method, layout: Layout | None, sizes: Sequence[int], peers: int) -> int:
    """Return the elements of the largest shard of a group. Where tensors stay whole, one has more than its part."""
    if layout is None or method.mean != "rda":
        return -(-max(sizes) // peers)
    cuts = (edges(peers, size, whole=block_spans(layout, fragment)) for fragment, size in enumerate(sizes))
    return max(end - start for cut in cuts for start, end in pairwise(cut))


def exchange_bytes(method: Method, elements: int, peers: int) -> int:
    """Return the bytes each way for one fragment of so many elements. In a group of M each peer owns an M-th. It sends
    each owner that owner's part, and receives its own part from each member. Then it sends its own result to each
    member and receives theirs. Where tensors stay whole, that is the mean over the peers."""
    if not method.exchanges:
        return 0
    if method.paired:
        return method.vectors * FORMS[method.codec].nbytes(elements)
    shard = -(-elements // peers)
    return (peers - 1) * (FORMS[method.codec].nbytes(shard) + result_nbytes(method.result_codec, shard, peers))


def largest_payload(method: Method, layout: Layout) -> int:
    """Return the bytes of the largest single payload that a peer may receive: a complete fragment (a group may be
    small)."""
    if not method.exchanges:
        return 0
    largest = max(layout.fragment_elements(fragment) for fragment in range(len(layout.fragments)))
    results = [largest_result(method.result_codec, largest, parts + 1) for parts in range(method.max_group)]
    return max(FORMS[method.codec].nbytes(largest), *results, 0)


def receipt_bounds(method: Method, parameters: int, rounds: int) -> ReceiptBounds:
    """Return what receipts of swaps can say in a run of so many rounds.

    No fragment has more elements than the model, and no codec more bytes than fp32 has for these and a chunk."""
    return ReceiptBounds(method.fragments, FP32 * method.vectors * (parameters + LARGEST_CHUNK), rounds)


def muon_matrices(
    model: ModelSection, optimizer: OptimizerSection, tensors: Sequence[TensorSpec] | None = None
) -> list[TensorSpec]:
    """Return the tensors that Muon moves. None while a foreign model's are not here."""
    if optimizer.kind != "muon":
        return []
    own = tensors_of(model) if isinstance(model, LlamaSection) else tensors or ()
    return [tensor for tensor in own if is_block_matrix(tensor.name, tensor.shape)]


def muon_elements(model: ModelSection, optimizer: OptimizerSection, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the parameters that Muon moves."""
    return sum(tensor.elements for tensor in muon_matrices(model, optimizer, tensors))


def muon_share(matrices: Sequence[TensorSpec], parameters: int, tokens: int) -> float:
    """Return the arithmetic that makes these matrices orthogonal, in parts of a step's forward and backward passes.

    Each of five iterations takes 4 m m n + 2 m m m operations for m rows and n columns, m the fewer. The passes take 6
    a parameter and token."""
    sides = [sorted(tensor.shape) for tensor in matrices]
    return sum(5 * (4 * m * m * n + 2 * m**3) for m, n in sides) / (6 * parameters * tokens)


def _within(method: Method) -> float:
    """Return the delay of the merge. Without one the trainer waits, and the window for that is known in seconds
    only."""
    if not method.exchanges:
        return 0.0
    if method.eager:
        return method.sync_every - method.round_length
    if method.fragment_sync_delay:
        return method.fragment_sync_delay
    return pairing_window(method.round_length) if method.clock == "seconds" else 0.0


def _under_way(method: Method, elements: int, shard: int, peers: int) -> int:
    if not method.exchanges:
        return 0
    if method.paired:
        whole = 2 * exchange_bytes(method, elements, peers)
        heads = elements // 2 if method.codec.startswith("modulo") else 0
        return min(whole, STREAMED_BYTES) + heads
    held = max((peers - 1) * FORMS[method.codec].nbytes(shard), result_nbytes(method.result_codec, shard, peers))
    if method.result_codec == SPARSE:
        held += result_nbytes(SPARSE, elements, peers)
    copy = FP32 * elements if method.codec in COPIED or method.outer_rule.corrects else 0
    return copy + held + min(2 * exchange_bytes(method, elements, peers), GROUPED_BYTES)
