"""Roll out a model behind an API: any OpenAI-compatible endpoint, which gets the tools of an environment as functions.

Here the model is a stand-in: a server in this process that searches for the question and answers with the first title that it
reads. For your own model, give its address to `OpenAI` and its name to `create`. The example prints the conversation of an
episode, and the mean score. Needs pip install openai.

    python examples/api_model.py [--quick]
"""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from agent_envs.integrations import Episode, take_message


class StandIn(BaseHTTPRequestHandler):
    def do_POST(self):
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        name, arguments = "search", {"query": messages[1]["content"]}
        if messages[-1]["role"] == "tool":
            name, arguments = "answer", {"text": re.findall(r"\[1\] (.*?):", messages[-1]["content"] + "[1] ?:")[0]}
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "x", "choices": [choice]}
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments):
        pass


def play(client, seed: int) -> tuple[list[dict], float]:
    """Roll out one episode; returns its conversation and its score."""
    episode = Episode("AgentR1/MiniWiki-v0", native=True, split="validation")
    messages = episode.start(seed)
    while not episode.done:
        answer = client.chat.completions.create(model="stand-in", messages=messages, tools=episode.tools)
        said = answer.choices[0]
        message = said.message.model_dump(exclude_none=True)
        _, back = take_message(episode, message, cut=said.finish_reason == "length")
        messages += [message, *back]
    return messages, episode.metrics["score"]


def main(out: str = "", quick: bool = False) -> None:
    from openai import OpenAI

    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    played = [play(client, seed) for seed in range(4 if quick else 100)]
    for message in played[0][0]:
        print(f"{message['role']}: {message.get('content') or message.get('tool_calls')}")
    print(f"exact match in {len(played)} episodes: {sum(score for _, score in played) / len(played):.2f}")
    server.shutdown()


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
