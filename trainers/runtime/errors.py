"""Errors of the user's input, as opposed to faults of this package."""


class UserError(ValueError):
    """An error that the user can fix, as the message explains. A command ends with it in one line and status 2."""
