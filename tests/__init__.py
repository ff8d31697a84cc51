"""A package, so that a ``tests`` folder that another library installs is not imported instead."""
