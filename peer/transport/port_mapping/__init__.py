"""Opens a port at the home's router by UPnP, so that a peer behind it can be dialled.

`mapper.PortMapper` keeps the port open: begin there. `router` runs the UPnP client `igd_child` in a process of its own.
When a port is wanted is decided in `peer.protocol.swarm.port_lease`."""
