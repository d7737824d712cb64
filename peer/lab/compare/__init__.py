"""`peer compare`: several methods at equal tokens, as real swarms or in virtual time, with their table and plot."""
