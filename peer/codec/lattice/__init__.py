"""Parameters at a few bits, read against the receiver's own."""
