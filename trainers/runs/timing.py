"""Where the time of a run goes."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Timing:
    """Seconds and tokens by name, until `taken`."""

    def __init__(self):
        self._seconds: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    @contextmanager
    def measure(self, name: str, tokens: int = 0) -> Iterator[None]:
        """Count how long it takes, what happens inside, and how many tokens it is about."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - begin
            self.count(name, tokens)

    def count(self, name: str, tokens: int) -> None:
        self._tokens[name] += tokens

    def pop_metrics(self) -> dict[str, float]:
        """``time/<name>`` in seconds and ``tokens/<name>``, both since the last call."""
        found = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        found |= {f"tokens/{name}": float(tokens) for name, tokens in self._tokens.items() if tokens}
        self._seconds.clear()
        self._tokens.clear()
        return found
