"""Error feedback: what a codec lost of one update is added to the next, so that nothing is lost for good."""

from __future__ import annotations

from torch import Tensor

from peer.codec.plain import Codec


def encode_with_feedback(codec: Codec, update: Tensor, residual: Tensor, decay: float = 1.0) -> tuple[bytes, Tensor]:
    """The payload of update + decay * residual, and the residual to give with the next update.

    Both tensors are flat fp32 of one length and are left as they are; the first residual is zeros. Nothing is kept
    here: who drops the payload (a round that failed) goes on with the old residual. The sum has to be finite: asserted
    by the codecs that lose enough to need this."""
    assert update.shape == residual.shape
    assert 0.0 <= decay <= 1.0
    wanted = update.add(residual, alpha=decay)
    payload = codec.encode(wanted)
    return payload, wanted.sub_(codec.decode(payload, wanted.numel()))
