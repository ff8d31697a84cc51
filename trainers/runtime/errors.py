"""What is wrong with what a user asked for, as opposed to a fault of this package."""


class UserError(ValueError):
    """What was asked for cannot be done; the message says why and what to do. A command ends with it in one line and status 2."""
