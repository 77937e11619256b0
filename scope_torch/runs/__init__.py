"""Runs: the loop between search and evaluator, and its files."""
