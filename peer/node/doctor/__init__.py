"""`peer doctor`: finds everything that prevents this machine from joining a run, and predicts its speed and traffic in
the run.

Begin with `examine.py`, which makes all checks in order. `machine.py`, `home.py`, `room.py` and `connection.py` check
this machine, `guest.py` and `visit.py` open a temporary node and look at the run, `trial.py` tries inner steps.
`finding.py` and `report.py` have the results. Nothing is written into the home."""
