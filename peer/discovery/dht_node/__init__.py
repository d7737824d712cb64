"""The DHT node (p2pd), kept alive."""
