"""The shutdown of a daemon: the plan of what it takes (`plan.py`), the last checkpoint and evaluation
(`last_state.py`), and the wait for a former daemon of the same home (`former.py`)."""
