"""Codecs: flat fp32 tensors to bytes and back, for everything that peers send each other.

`plain` defines the interface (`Codec`) and the codecs that only cast: begin there. `blocks` (int8, int4, e3m0) and
`topk` compress updates. `lattice` compresses full params for a partner whose params are close. `stream` encodes and
decodes a payload tile by tile while it is sent. `kernels` replaces the torch implementations by C where possible, and
`registry` maps names to codecs.

A codec knows nothing of peers, rounds or frames. A decoder that reads invalid bytes raises BadPayload."""
