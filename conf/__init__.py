"""Hydra configuration: `schema.py` types and documents it, the YAML files give the values."""

from conf.schema import register

register()
