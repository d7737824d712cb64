"""What the others make of a snapshot: alone, in a pair, in a group."""
