"""Serve a checkpoint at an OpenAI-compatible endpoint, as in training, to try a program by hand.

    python -m trainers.serve --checkpoint runs/…/best
    OPENAI_BASE_URL=http://127.0.0.1:8001/v1 OPENAI_API_KEY=any node agent.js

Any key is accepted. As in training, waiting calls form one batch, with the same temperature.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from trainers import inputs
from trainers.cli import parse
from trainers.config import Checks, Count, NotNegative
from trainers.runtime.errors import UserError


@dataclass(kw_only=True)
class Args(Checks):
    """Serve a model to programs on this machine."""

    checkpoint: Path | None = None
    """A trained model or LoRA adapter."""
    model: str = ""
    """A model: a folder, GGUF file or hub id; with --checkpoint, the base of its adapter."""
    temperature: NotNegative = 1.0
    """Sampling temperature of all calls; 0 is greedy decoding."""
    max_new_tokens: Count | None = None
    """Longest turn, in tokens. Default: as the checkpoint was trained, else 512."""
    port: int = 8001
    """Port on this machine; 0 for any free one."""

    def check_inputs(self) -> None:
        """Check the models and packages that the arguments name."""
        if not (self.checkpoint or self.model):
            raise UserError("give --checkpoint, or --model")
        for package in ("fastapi", "uvicorn"):
            inputs.check_package(package, "serve", "agents")
        from retrieval_index.command_line import check_port  # here: importing its package takes time

        check_port(self.port)
        inputs.check_model(self.checkpoint or self.model, self.model if self.checkpoint else "")


if __name__ == "__main__":
    ARGS = parse(Args(), __doc__, "serve")  # before torch is imported, so that --help and errors appear at once

from trainers.agents.calls import Call, CallRefused, Session
from trainers.agents.endpoint import Endpoint
from trainers.engines.engine import SamplingParams
from trainers.engines.transformers_engine import TransformersEngine
from trainers.evaluation.evaluator import load_agent
from trainers.rollouts.dispatcher import Dispatcher
from trainers.rollouts.timing import Timing
from trainers.runtime import signals
from trainers.trajectory import Trajectory

KEPT = 256  # answered calls that later ones may extend


class _Caller:
    """All programs, treated as one episode without an end."""

    def __init__(self, dispatcher: Dispatcher, session: Session):
        self.session, self._dispatcher = session, dispatcher
        self.number, self.running, self.waiting, self.since, self.ended = 0, True, 0, time.monotonic(), False

    def submit(self, call: Call) -> None:
        self._dispatcher.submit(self, call)

    def call_tool(self, name: str, arguments: object) -> str:
        raise LookupError("there is no environment here, so there are no tools")

    def reward(self, value: float) -> None:
        raise CallRefused(400, "there is no episode here to pay for")

    def fail(self, problem: str) -> None:
        """Do nothing: the episode has no end."""


def main(args: Args) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP."""
    base = args.model if args.checkpoint else ""
    policy, longest = load_agent(str(args.checkpoint or args.model), base, max_new_tokens=args.max_new_tokens)
    engine = TransformersEngine(policy, policy.stop)
    params = SamplingParams(max_new_tokens=longest, temperature=args.temperature)
    dispatcher = Dispatcher(engine, params, Timing())
    session = Session(policy, Trajectory(), itertools.count().__next__, keep=KEPT)

    def forget() -> None:
        session.trajectory = Trajectory()  # nothing is learned from it

    session.before_turn = forget
    caller = _Caller(dispatcher, session)
    endpoint = Endpoint(lambda key: caller, args.port)
    print(f"OPENAI_BASE_URL={endpoint.url} OPENAI_API_KEY=any", flush=True)
    with signals.handle_signals():
        try:
            dispatcher.run([caller])
        finally:
            dispatcher.close()
            endpoint.close()


if __name__ == "__main__":
    main(ARGS)
