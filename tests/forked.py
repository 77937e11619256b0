"""Processes forked from a server that has imported this project once, with torch and Hydra."""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

from source_code import ROOT

PRELOADED = ["reliability.imported", "evaluators.far_apps"]


def forking() -> ForkServerContext:
    """The context whose processes start in milliseconds; spawned ones import for seconds.

    The server starts here: inside a search it would inherit a mask of signals.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), path])
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONPATH"] = path
    return context
