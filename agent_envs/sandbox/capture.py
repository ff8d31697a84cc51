"""A stream kept within bounds."""

CHUNK = 1 << 16  # bytes read at a time


class Capture:
    """The first and the last half of a stream, in memory bounded whatever its length."""

    def __init__(self, limit: int):
        self.first, self.last, self.total = limit - limit // 2, limit // 2, 0
        self.head, self.tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(data)
        room = self.first - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > self.last + CHUNK:
            del self.tail[: len(self.tail) - self.last]

    @property
    def truncated(self) -> bool:
        """Whether the middle of the stream was dropped."""
        return self.total > self.first + self.last

    def text(self) -> str:
        """What was kept, decoded, invalid UTF-8 replaced; a line says how many bytes were left out."""
        data = bytes(self.head + self.tail)
        if self.truncated:
            left_out = b"\n[... %d bytes left out ...]\n" % (self.total - self.first - self.last)
            data = bytes(self.head) + left_out + bytes(self.tail[len(self.tail) - self.last :])
        return data.decode("utf-8", "replace")
