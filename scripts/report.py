"""Tables and figures of finished runs; the same as `scope-torch report`."""

from scope_torch.cli.report import main

if __name__ == "__main__":
    main()
