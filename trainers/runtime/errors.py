"""Errors of the user's input, as opposed to faults of this package."""


class UserError(ValueError):
    """An error that the user can fix; the message explains how. A command prints it in one line and exits with status 2."""
