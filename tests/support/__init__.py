"""Helpers that several tests share: faulty peers, recorders, invariants."""
