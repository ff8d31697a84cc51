"""What is wrong with what a user asked for, as opposed to a fault of this package."""


class UserError(ValueError):
    """An error that the user can fix, as the message explains. A command ends with it in one line and status 2."""
