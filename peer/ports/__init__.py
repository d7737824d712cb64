"""Interfaces between the layers: Protocols and the values in their signatures."""
