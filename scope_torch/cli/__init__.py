"""The command line: `scope-torch KEY=VALUE ...` searches, `scope-torch COMMAND ...` the rest."""

# Each is a module of this package with a function `main`.
COMMANDS = (
    *("report", "watch", "check", "recheck", "serve", "import", "evaluate", "record_table"),
    "replay",
)
# `import` is a keyword of Python, so its module has another name; `replay_wandb` is an old name.
MODULE_OF = {"import": "import_traces", "replay_wandb": "replay"}
