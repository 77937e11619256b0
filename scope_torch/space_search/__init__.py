"""Minima of confidence bounds over all configurations."""
