"""Measuring: how fast the backends are on this machine, and how fast it could be."""
