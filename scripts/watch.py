"""A run as a page to look at: `scope-torch watch RUN_DIR [--follow]`."""

from scope_torch.cli.watch import main

if __name__ == "__main__":
    main()
