"""The view that a peer has of the swarm: which peers are alive (`failure_detection`, `answering`), which can be reached
and how (`reachability`, `nearness`, `port_lease`, `relay_choice`), where records are published (`buckets`), and
estimates from the claims of others (`block_votes`, `claimed_round`). All modules are pure. Begin with
`failure_detection`."""
