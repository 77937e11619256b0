"""LLMs: prices, calls, endpoints, retries, bills, and a store of replies."""
