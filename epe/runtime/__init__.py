"""Wires leader and ranks together, and offers them to a program as an async API."""
