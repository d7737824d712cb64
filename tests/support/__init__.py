"""What several tests share: faulty peers, recorders, invariants."""
