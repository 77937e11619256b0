"""What searches import while they run; the server of `forked` has it before its first fork."""

import importlib
from importlib.util import find_spec

from reliability.children import TASK

from scope_torch.cli.compose import compose

_OF_SEARCHES = (
    "methods", "front_method", "tasks.synthetic", "tasks.live", "tasks.airport_city",
    "model.botorch", "baselines.cei", "baselines.llambo",
)  # fmt: skip

for name in _OF_SEARCHES:
    importlib.import_module(f"scope_torch.{name}")
for name in ("optuna", "openai"):
    if find_spec(name) is not None:
        importlib.import_module(name)
importlib.import_module("torch.fx.experimental.symbolic_shapes")  # of `broadcast_shapes`
compose(TASK)  # Hydra looks for its plugins once
