"""A server in this process that stands in for a model behind OpenAI's API."""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Chat:
    """What the server does.

    Args:
        say: the turn that answers a request: text, a list of (function, arguments as text), a whole message, or bytes that
            are the body. A `Trouble` that it raises happens instead.

    Attributes:
        url: base of the API.
        heard: the requests for a turn, as they came.
        keys: what stood in their Authorization.
        busy, busiest: requests at once, now and at most.
    """

    def __init__(self, say):
        self.say, self.heard, self.keys, self.busy, self.busiest = say, [], [], 0, 0
        self.lock, self.url, self.alive = threading.Lock(), "", True


class Trouble(Exception):
    """Args: the status of an answer, its body and headers; or "reset" for a connection that is cut, or seconds of silence as a
    float."""

    def __init__(self, status, body=None, **headers):
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = body if body is not None else {"error": {"message": f"trouble {status}"}}


@contextmanager
def serve(say):
    """A `Chat` while it is served."""
    chat = Chat(say)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._guarded(lambda: {"object": "list", "data": []})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with chat.lock:
                chat.heard.append(request)
                chat.keys.append(self.headers["Authorization"])
                chat.busy += 1
                chat.busiest = max(chat.busy, chat.busiest)
            try:
                self._guarded(lambda: chat.say(request))
            finally:
                with chat.lock:
                    chat.busy -= 1

        def _guarded(self, make):
            try:
                if not chat.alive:
                    raise Trouble("reset")
                said = make()
                made = said if isinstance(said, bytes) or "data" in said else answer(said)
                self._send(200, made if isinstance(made, bytes) else json.dumps(made).encode(), {})
            except Trouble as trouble:
                if trouble.status == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                elif isinstance(trouble.status, float):
                    time.sleep(trouble.status)
                    self._send(200, b"{}", {})
                else:
                    self._send(trouble.status, json.dumps(trouble.body).encode(), trouble.headers)

        def _send(self, status, body, headers):
            self.send_response(status)
            fixed = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            for name, value in {**fixed, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def finish(self):
            with suppress(OSError):  # the connection was cut
                super().finish()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.handle_error = True, lambda *_: None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()


def calls(turn):
    """Function calls of (name, arguments as they stand in the message)."""
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(turn)
    ]


def answer(said):
    """The body of an answer with this turn."""
    message = {"content": said} if isinstance(said, str) else said
    if isinstance(said, list):
        message = {"content": None, "tool_calls": calls(said)}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def number_of_turn(request):
    """How many turns the model has taken in this conversation."""
    return sum(message["role"] == "assistant" for message in request["messages"])
