"""An application on this machine, for as long as a test needs it."""

import threading
from collections.abc import Iterator

import uvicorn


def serve(app) -> Iterator[str]:
    """Yields the address of the application, served in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
