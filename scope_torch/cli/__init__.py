"""The command line: `scope-torch KEY=VALUE ...` searches, `scope-torch COMMAND ...` the rest."""

# Each is a module of this package with a function `main`.
COMMANDS = ("evaluate", "record_table", "replay_wandb", "report", "serve", "watch", "import")
# `import` is a keyword of Python, so its module has another name.
MODULE_OF = {"import": "import_traces"}
