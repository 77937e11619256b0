"""Simulated compound LLM systems: specification, world, evaluator, random numbers."""
