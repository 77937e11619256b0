"""Sends a run from its directory to W&B; the same as `scope-torch replay_wandb`."""

from scope_torch.cli.replay_wandb import main

if __name__ == "__main__":
    main()
