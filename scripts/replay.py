"""Sends a run from its directory to W&B; the same as `scope-torch replay`."""

from scope_torch.cli.replay import main

if __name__ == "__main__":
    main()
