"""Hydra configuration: `schema.py` types and documents it, the YAML files give the values."""
