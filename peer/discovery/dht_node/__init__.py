"""DHT node (p2pd), kept alive by a supervisor."""
