"""Logged traces of an application: which LLM ran each module, on what, and what it cost."""
