"""Runs: budget, journal, result and metrics."""
