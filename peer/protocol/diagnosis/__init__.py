"""Diagnosis of slow peers, links and trainers from a peer's own exchanges. Begin with `analysis`; `outliers` has the
statistics."""
