"""Pairs: find a partner for a round, and decide what to accept of its params.

`matching` locks two peers by offers, with the weights of `scores`. `proven`, `stranger_budget`, `address_quota` and
`acquaintance` limit what fresh keys can do. `clip` and `probe_verdict` judge the partner's params. `receipt` and
`receipt_chain` record swaps with the signatures of both. Begin with `matching`."""
