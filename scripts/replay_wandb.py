"""Tells W&B a run again: `python scripts/replay_wandb.py RUN_DIR [key=value ...]`."""

from scope_torch.cli.replay_wandb import main

if __name__ == "__main__":
    main()
