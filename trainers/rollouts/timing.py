"""Timing of the parts of a run."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Timing:
    """Sums of seconds and tokens by name, since the last `pop_metrics`."""

    def __init__(self):
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tokens: defaultdict[str, int] = defaultdict(int)

    @contextmanager
    def measure(self, name: str, tokens: int = 0) -> Iterator[None]:
        """Time the body of a ``with`` statement and count its ``tokens``, even if it raises an error."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - begin
            self.count(name, tokens)

    def count(self, name: str, tokens: int) -> None:
        """Add tokens to a name, without any time."""
        self._tokens[name] += tokens

    def pop_metrics(self) -> dict[str, float]:
        """Return ``time/<name>`` in seconds and ``tokens/<name>``, both since the last call."""
        metrics = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        metrics |= {f"tokens/{name}": float(tokens) for name, tokens in self._tokens.items() if tokens}
        self._seconds.clear()
        self._tokens.clear()
        return metrics
