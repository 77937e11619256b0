"""Candidate LLMs: prices and public scores."""
