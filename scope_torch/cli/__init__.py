"""The command line: `scope-torch KEY=VALUE ...` searches, `scope-torch COMMAND ...` the rest."""

from __future__ import annotations

import sys
from importlib import import_module

from scope_torch.cli.saying import say

# Each is a module of this package with a function `main`.
COMMANDS = (
    *("report", "watch", "check", "recheck", "serve", "import", "evaluate", "record_table"),
    "replay",
)
# `import` is a keyword of Python, so its module has another name; `replay_wandb` is an old name.
MODULE_OF = {"import": "import_traces", "replay_wandb": "replay"}


def main() -> None:
    """Entry point; exits with 2 if the user can mend the error, with 130 after Ctrl-C."""
    try:
        if sys.argv[1:] == ["--version"]:  # or Hydra says its own
            say(f"scope-torch {import_module('scope_torch').__version__}")
            return
        run = import_module("scope_torch.cli.run")
    except KeyboardInterrupt:  # imports take seconds
        print("interrupted; nothing was begun", file=sys.stderr)
        sys.exit(130)
    run.main()
