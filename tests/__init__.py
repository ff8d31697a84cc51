"""A package, so that no tests folder that another library installs stands before ours."""
