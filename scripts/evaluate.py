"""Evaluates a configuration on held-out queries, against the reference (RQ2)."""

from scope_torch.cli.evaluate import main

if __name__ == "__main__":
    main()
