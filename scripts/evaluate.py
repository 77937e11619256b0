"""Evaluates a configuration on held-out queries; the same as `scope-torch evaluate`."""

from scope_torch.cli.evaluate import main

if __name__ == "__main__":
    main()
