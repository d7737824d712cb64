"""`peer doctor`: finds everything that keeps this machine out of a run, and predicts what it would do there.

Begin with `examine.py`, which makes all checks in order. `machine.py`, `home.py`, `room.py` and `connection.py` check
this machine, `guest.py` and `visit.py` open a temporary node and look at the run, `trial.py` tries inner steps.
`finding.py` and `report.py` have the results. Nothing is written into the home."""
