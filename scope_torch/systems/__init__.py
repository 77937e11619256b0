"""Compound AI systems as module graphs."""
