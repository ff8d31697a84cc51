"""The old name of `experiments.compare`, for one release."""

import sys

if __name__ == "__main__":
    print("this command is now called compare: python -m experiments.compare", file=sys.stderr)
    sys.exit(2)
