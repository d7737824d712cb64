"""Summaries that peers send the operator's nodes about themselves, and the statistics that a node computes from them.
Begin with `values`."""
