"""What peers ask of each other: one module a call, with its messages, the side that asks and the side that answers."""
