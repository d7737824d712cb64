"""Planning aids: what a method needs from links and machines, by arithmetic alone. Nothing is started, except by
`measuring`, which trains a small model for some seconds.

`planner.plan` makes a whole plan (`peer plan`). It takes step sizes and loss from the scaling laws (`laws`), and the
time that an exchange costs from `pace`, which rests on `utilization` (streaming) and `stragglers` (waiting for others).
`latency` compares an all-reduce with pairs."""
