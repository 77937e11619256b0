"""Runs every configuration of a live task on every query and writes the table."""

from scope_torch.cli.record_table import main

if __name__ == "__main__":
    main()
