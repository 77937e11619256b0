"""The command line: `scope-torch KEY=VALUE ...` searches, `scope-torch COMMAND ...` the rest."""

# Each is a module of this package with a function `main`.
COMMANDS = ("evaluate", "record_table", "replay_wandb", "report", "serve", "watch")
