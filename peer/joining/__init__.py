"""From a ticket to a trainer that is ready. `sequence.py` has the order of the stages; the other modules do them."""
