"""Runs a search: `scope-torch task=... method=... budget_usd=... seed=...` (see conf/)."""

from scope_torch.cli.run import main

if __name__ == "__main__":
    main()
