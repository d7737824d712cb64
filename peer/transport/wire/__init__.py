"""Messages and transfers, the same for client and server."""
