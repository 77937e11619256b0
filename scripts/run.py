"""Runs searches; the same as the command `scope-torch`."""

from scope_torch.cli import main

if __name__ == "__main__":
    main()
