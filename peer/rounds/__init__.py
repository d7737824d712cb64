"""The rounds of a peer: when one is due, and how its work gets from the trainer's snapshot to the merged result.

`loop.py` plays the rounds; begin reading there. `schedule.py` decides when a round is due, `directives.py` which pauses
and new states to obey, `inflight.py` holds the rounds that are not merged yet, and `commit.py` alone moves
`outer_params`. `trainer_supervisor.py` restarts the trainer, `evaluation.py` has it evaluate, and `pause.py` is the
volunteer's own pause. The package does not know the topology: it drives any
`peer.exchange.strategy.ExchangeStrategy`."""
