"""The operator's node: entry point to the DHT, first donor, and archive of the newest good state. It does not train,
and a run continues without it.

Begin with `bootstrap.py`, the node from start to end. `initial_state.py` makes the first state and `given.py` serves
states to joiners. `keeper.py` decides when a newer state is fetched (`collect.py`), evaluated (`judge.py`) and archived
(`kept.py`). `start_time.py` signs the start of round 0, `presence.py` announces the node, `run_progress.py` and
`run_view.py` follow the run."""
