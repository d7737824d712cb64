"""Limits and choices of a peer: donors, reputation, budgets for dials and uploads, rations of state, fitness for a run,
and the operator's amendments. The modules are pure and do not depend on each other. `donors` is the largest."""
