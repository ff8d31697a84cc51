"""An OpenAI-compatible server that stands in for a model."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def stand_in():
    """Yields a class whose ``script`` has the turns that are said, one a request, ``finish_reason`` why they end, ``heard``
    the requests, ``url`` the address."""

    class Model(BaseHTTPRequestHandler):
        script: list
        finish_reason = "stop"
        heard: list
        url: str

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.heard.append(request)
            turn = self.script[sum(message["role"] == "assistant" for message in request["messages"])]
            said = {"content": turn} if isinstance(turn, str) else {"content": None, "tool_calls": calls(turn)}
            choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": self.finish_reason}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
            body = json.dumps({**answer, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    Model.script, Model.heard = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Model.url = f"http://127.0.0.1:{server.server_port}/v1"
    yield Model
    server.shutdown()


def calls(turn: list[tuple[str, str]]) -> list[dict]:
    """Function calls of (name, arguments as they stand in the message)."""
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(turn)
    ]
