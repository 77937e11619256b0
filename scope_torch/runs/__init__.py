"""A run: budget, journal, result, and what is measured on it."""
