"""The exchange of a round: alone, in a pair, in a group."""
