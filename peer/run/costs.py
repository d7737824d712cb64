"""Computes the costs of a method with a model, by arithmetic alone: bytes on the wire, the rate that they need, and
memory."""

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
"""Most elements by which a codec pads its last chunk."""
DAEMON_BASE = 190 * 2**20
"""Bytes of a daemon without a model: interpreter, libraries, connections. Pages of files are not counted, because the
system can drop them."""
STREAMED_BYTES = 20 * 10**6
"""Bytes that a swap holds, both ways, when the payload is encoded and decoded while it is sent. The modulo codecs need
another half byte per element, for the known part of the blocks."""

GROUPED_BYTES = 31 * 10**6
"""Bytes that a group's exchange holds besides the owner's share, for the codec that needs most."""
SOCKET_FRAMING = 0.003
"""Part that frames and encryption add to a payload, without the packets below them."""
COPIED = ("topk",)
"""Codecs that lose so much of an update that the lost part is stored (error feedback). The own values are copied then,
as for a rule that corrects them."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of one peer. In each round it receives as many bytes as it sends."""

    parameters: int
    peers: int
    """Peers that exchange with each other in a round. In groups `max_group` is assumed."""
    fragment_bytes: tuple[int, ...]
    """Payload bytes each way in a round, per fragment, without frames and messages."""
    bytes_per_hour: float | None
    """Payload bytes each way per hour. None: rounds are in inner steps of unknown duration."""
    peak_within: float
    """Time in which the largest fragment has to be transferred, in seconds or inner steps, as the clock counts. 0:
    nothing is exchanged."""
    peak_bits_per_s: float | None
    """Rate each way that `peak_within` needs. None: rounds are in inner steps."""
    arena_bytes: int
    """The file that daemon and trainer map: outer_params and the trainer's snapshots, fp32."""
    momentum_bytes: int
    """outer_momentum, fp32, if the rule has one. Eager updates need three more tensors of this size, for the peer's own
    part."""
    buffer_bytes: int
    """Buffers for a partner's decoded values or a group's mean, allocated once. Each overlapping exchange needs another
    one, all of them together at most the size of the model."""
    payload_bytes: int
    """Largest further memory of an exchange of the largest fragment: the payloads under way. In groups these are the
    members' contributions to the own shard and then its result. Sparse results are held until they are complete."""
    message_bytes: int = 0
    """Bytes of messages each way in a round, besides the payload."""
    base_bytes: int = DAEMON_BASE

    @property
    def socket_bytes(self) -> tuple[int, ...]:
        """Bytes of each fragment's round at the socket, without the messages between rounds."""
        return tuple(round(nbytes * (1 + SOCKET_FRAMING)) + self.message_bytes for nbytes in self.fragment_bytes)

    @property
    def bytes_per_sync(self) -> int:
        """Payload bytes each way in one `sync_every`."""
        return sum(self.fragment_bytes)

    @property
    def daemon_bytes(self) -> int:
        """The daemon's own memory at its peak, without the arena. Checkpoints and copies for joiners need none, because
        they are written to disk from the state itself."""
        return self.base_bytes + self.momentum_bytes + self.buffer_bytes + self.payload_bytes

    @property
    def memory_bytes(self) -> int:
        """The daemon's own memory and the arena."""
        return self.daemon_bytes + self.arena_bytes


def cost_of(model: ModelSection, method: Method, tensors: Sequence[TensorSpec] | None = None) -> Cost:
    """Compute the costs of one peer. The method must fit the model, as that of a checked manifest does. `tensors`:
    those of a foreign model. None: not known yet, and its fragments are assumed to be equal."""
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
    """Return the layout, or None while the layout of a foreign model is not known."""
    return None if tensors is None and not isinstance(model, LlamaSection) else layout_for(model, method, tensors)


def _fragments(layout: Layout | None, method: Method, parameters: int) -> list[int]:
    """Return the elements of each fragment."""
    if layout is None:
        return [-(-parameters // method.fragments)] * method.fragments
    return [layout.fragment_elements(fragment) for fragment in range(len(layout.fragments))]


def _largest_shard(method: Method, layout: Layout | None, sizes: Sequence[int], peers: int) -> int:
    """Return the elements of the largest shard of a group. If tensors are kept whole, it is larger than an equal
    part."""
    if layout is None or method.mean != "rda":
        return -(-max(sizes) // peers)
    cuts = (edges(peers, size, whole=block_spans(layout, fragment)) for fragment, size in enumerate(sizes))
    return max(end - start for cut in cuts for start, end in pairwise(cut))


def exchange_bytes(method: Method, elements: int, peers: int) -> int:
    """Return the bytes each way for one fragment of `elements` elements.

    In a group of M peers each owns a shard of 1/M. It sends each owner that owner's shard and receives its own shard
    from each member, then sends its result to each member and receives theirs. If tensors are kept whole, shards are
    unequal and this is the mean over the peers."""
    if not method.exchanges:
        return 0
    if method.paired:
        return method.vectors * FORMS[method.codec].nbytes(elements)
    shard = -(-elements // peers)
    return (peers - 1) * (FORMS[method.codec].nbytes(shard) + result_nbytes(method.result_codec, shard, peers))


def largest_payload(method: Method, layout: Layout) -> int:
    """Return the bytes of the largest single payload that a peer may receive. That is a complete fragment, because a
    group may be small."""
    if not method.exchanges:
        return 0
    largest = max(layout.fragment_elements(fragment) for fragment in range(len(layout.fragments)))
    results = [largest_result(method.result_codec, largest, parts + 1) for parts in range(method.max_group)]
    return max(FORMS[method.codec].nbytes(largest), *results, 0)


def receipt_bounds(method: Method, parameters: int, rounds: int) -> ReceiptBounds:
    """Return the bounds of what receipts may claim in a run of this many rounds: a fragment has no more elements than
    the model, and a payload no more bytes than fp32 with one padded chunk."""
    return ReceiptBounds(method.fragments, FP32 * method.vectors * (parameters + LARGEST_CHUNK), rounds)


def muon_matrices(
    model: ModelSection, optimizer: OptimizerSection, tensors: Sequence[TensorSpec] | None = None
) -> list[TensorSpec]:
    """Return the tensors that Muon updates. Empty while the tensors of a foreign model are not known."""
    if optimizer.kind != "muon":
        return []
    own = tensors_of(model) if isinstance(model, LlamaSection) else tensors or ()
    return [tensor for tensor in own if is_block_matrix(tensor.name, tensor.shape)]


def muon_elements(model: ModelSection, optimizer: OptimizerSection, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the number of parameters that Muon updates."""
    return sum(tensor.elements for tensor in muon_matrices(model, optimizer, tensors))


def muon_share(matrices: Sequence[TensorSpec], parameters: int, tokens: int) -> float:
    """Return the cost of Muon's orthogonalization relative to the forward and backward passes of a step with `tokens`
    tokens.

    Each of five iterations takes 4 m m n + 2 m m m operations for an m by n matrix with m <= n. The passes take 6
    operations per parameter and token."""
    sides = [sorted(tensor.shape) for tensor in matrices]
    return sum(5 * (4 * m * m * n + 2 * m**3) for m, n in sides) / (6 * parameters * tokens)


def _within(method: Method) -> float:
    """Return the time until the merge, in which a payload has to arrive. Without a merge delay the trainer waits for
    the payload; how long it may wait is known only with a clock in seconds. 0: not known, or nothing is exchanged."""
    if not method.exchanges:
        return 0.0
    if method.eager:
        return method.sync_every - method.round_length
    if method.fragment_sync_delay:
        return method.fragment_sync_delay
    return pairing_window(method.round_length) if method.clock == "seconds" else 0.0


def _under_way(method: Method, elements: int, shard: int, peers: int) -> int:
    """Return the memory of the payloads under way: see `Cost.payload_bytes`."""
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
