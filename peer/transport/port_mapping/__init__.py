"""A port of the router, asked for by UPnP."""
