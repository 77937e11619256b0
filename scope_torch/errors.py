"""Errors shown without a traceback."""


class InputError(ValueError):
    """A value given by the user is wrong; the message names it and what to do.

    The command line shows the message alone and exits with status 2.
    """


class JobsFailed(Exception):
    """Some jobs of a sweep, or its launcher, failed; the message names them, a line each."""
