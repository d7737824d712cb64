"""The image, a swarm of containers, and the means to rehearse both without a container engine."""
