"""SCOPE: cost-efficient model selection for compound AI systems under quality constraints."""
