"""Simulated compound systems."""
