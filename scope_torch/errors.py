"""The one exception for what a user can mend."""


class InputError(ValueError):
    """A value given by the user is wrong; the message names it and what to do.

    The command line shows the message alone and exits with status 2.

    Args:
        message: Made one line, whatever is in the values that it names.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))
