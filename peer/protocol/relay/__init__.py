"""Relays: who may reserve, who may call, and which relay is left. Pure."""
