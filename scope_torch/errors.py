"""Errors shown without a traceback."""


class InputError(ValueError):
    """A value given by the user is wrong; the message names it and what to do.

    The command line shows the message alone and exits with status 2.

    Args:
        message: Made one line, whatever is in the values that it names.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class JobsFailed(Exception):
    """Some jobs of a sweep, or its launcher, failed; the message names them, a line each."""
