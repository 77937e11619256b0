"""A page about a run; the same as `scope-torch watch`."""

from scope_torch.cli.watch import main

if __name__ == "__main__":
    main()
