"""Summarises finished runs: `python scripts/report.py OUTPUT_DIR` writes tables and figures."""

from scope_torch.cli.report import main

if __name__ == "__main__":
    main()
