"""Use a judge as reward: a language model behind an OpenAI-compatible endpoint decides whether an answer is right.

Here the judge is a stand-in: a server in this process that answers yes if the references and the answer share a word. For your
own, set `judge` to {"url": "https://…/v1", "model": "…"} and the key in OPENAI_API_KEY. The example prints exact match and
judge of three answers, trains, and prints both for each update. A policy may learn to persuade a judge: watch exact match.

    python examples/judge_reward.py [--quick]
"""

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gymnasium

import agent_envs  # noqa: F401  (registers the environments)
from trainers import grpo
from trainers.runtime.progress import read_metrics

SMALL = {"entities": 150, "questions": 100}
QUICK = dict(
    updates=2, cold_start_steps=3, max_new_tokens=8, questions_per_update=2, group_size=2,
    eval_questions=2, final_questions=2,
)  # fmt: skip


class StandIn(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = [set(re.findall(rf"<{tag}>(.*?)</{tag}>", request["messages"][0]["content"], re.S)[0].lower().split())
                 for tag in ("references", "proposed")]  # fmt: skip
        reply = {"choices": [{"message": {"content": "yes" if parts[0] & parts[1] else "no"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *arguments):
        pass


def main(out: str = "runs/judge-reward", quick: bool = False) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    judge = {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "stand-in"}
    kwargs = {"judge": judge, "rewards": {"answer": 0.0, "judge": 1.0}} | (SMALL if quick else {})

    env = gymnasium.make("AgentR1/MiniWiki-v0", **kwargs).unwrapped
    for answer in ("{}", "it must be {}", "no idea"):
        env.reset(seed=0)
        info = env.step(f"<answer>{answer.format(env.question.answer)}</answer>")[4]
        print(f"{info['prediction']!r}: exact match {info['em']:.0f}, judge {info['judged']:.0f}")

    grpo.main(grpo.Args(env_kwargs=json.dumps(kwargs), out=Path(out), **(QUICK if quick else {})))
    for line in read_metrics(Path(out) / "metrics.jsonl")[1:]:
        print(f"update {line['step']}: judge {line['reward/judge']:.2f}, exact match {line['train/em']:.2f}")
    server.shutdown()


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
