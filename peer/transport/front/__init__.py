"""The accepting front: the public sockets, in front of gRPC, which listens on loopback."""
