"""The exchange of a round: what a peer sends to others, receives from them, and accepts, in one of three topologies.

`strategy.py` declares the interface `ExchangeStrategy`, which `peer.rounds` drives. `solo.py`, `pair/` and `group/`
implement it and do not import each other. `build.py` creates the strategy for the run's method. The other modules are
shared: checks of received values (`validation.py`), time limits (`deadlines.py`), lent memory (`buffers.py`,
`payloads.py`) and transfer rates (`throughput.py`).

Nothing in this package moves `outer_params`: an exchange returns an `ExchangeResult`, and `peer.rounds.commit` takes
the outer step. Begin reading with `strategy.py`, then `pair/strategy.py` or `group/strategy.py`."""
