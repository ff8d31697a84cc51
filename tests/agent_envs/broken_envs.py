"""A sound little environment, and one for each way to break a promise. They live here for other processes to import."""

import json
import pickle
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium
import numpy as np

from agent_envs.rewards import AtEnd, Gate, Metric, Reward, Shaping
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, ToolResult, Turn, TurnOutcome

_WORDS = tuple(f"word{i}" for i in range(40))


@contextmanager
def registered(task: type) -> Iterator[str]:
    """An id for a while, so that the environment has a spec."""
    id = f"Broken/{task.__name__}-v0"
    gymnasium.register(id, entry_point=f"broken_envs:{task.__name__}", disable_env_checker=True)
    try:
        yield id
    finally:
        del gymnasium.registry[id]


class Echo:
    """Says it again."""

    name, description = "echo", "says it again."
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}  # noqa: RUF012

    def execute(self, arguments):
        return ToolResult(arguments["text"])

    def execute_batch(self, arguments):
        return [self.execute(one) for one in arguments]


class Digit(ToolEnv):
    """Name the digit: nothing is wrong here."""

    REWARD = Reward(right=(1.0, Metric("right")))
    PRIMARY_METRIC = "right"

    def __init__(self, tool=None, **common):
        super().__init__((tool or Echo(),), instructions="Name a digit.", max_turns=4, **common)

    def begin(self, options):
        self.digit = str(self.np_random.integers(10))
        return self.question(), {}

    def question(self):
        return "Which digit?"

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": float(turn.answer == self.digit)})


def halve(env, rng):
    yield Turn(answer="5")


class Halves(Digit):  # has scripts, and none called as ours are
    SCRIPTS = {"halving": halve}  # noqa: RUF012


class Warns(Digit):  # nothing is wrong here either
    def __init__(self, **common):
        super().__init__(**common)
        warnings.warn("this is a stand-in", stacklevel=2)


class Unmeasured(Digit):  # its own measure has another name
    PRIMARY_METRIC = "rihgt"


class Critic:  # a term of one's own
    path = "/models/critic"

    def __init__(self):
        self.prompt = "Rate this"

    def __call__(self, context):
        return 0.0


class ReadsNothing(Digit):  # terms read metrics that are never reported, one of them by name an entry of the info
    REWARD = Reward(
        right=(1.0, AtEnd(Metric("right"))), near=(0.5, AtEnd(Gate(Metric("naer"), Shaping("close")))),
        turns=(0.1, Metric("turns")), critic=(1.0, Critic()), nothing=(0.0, Metric("nowhere")),
    )  # fmt: skip


class Weighed(Unmeasured):  # has weights, as a mixture does
    weights = (1, 2)


class LooksAtItsReward(Digit):  # nothing is wrong here
    def evaluate_turn(self, turn, results, done):
        assert "right" in pickle.loads(pickle.dumps(self.reward))
        return super().evaluate_turn(turn, results, done)


class Adds(Digit):  # a reward beside its terms
    def resolve(self, *args):
        observation, reward, *rest = super().resolve(*args)
        return observation, reward + 1.0, *rest


class Judge(Echo):  # says what a digit is worth
    def execute(self, arguments):
        return ToolResult(f"correct: {arguments['text']}" if arguments["text"] == "five" else "wrong")


def ask_for_five(env, rng):
    yield Turn(calls=(ToolCall("echo", {"text": "five"}),))
    yield Turn(answer="5")


class PaysItsTool(Digit):  # reads the reward off the words of its tool, which no random turn makes it say
    SCRIPTS = {"halving": ask_for_five}  # noqa: RUF012

    def __init__(self, **common):
        super().__init__(Judge(), **common)

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": float(any(result.text == "correct: five" for result in results))})


class PaysToolText(Digit):  # a tool may say what it likes, and is paid for it
    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": float(any("yes" in result.text for result in results))})


class ReadsToolText(Digit):  # chokes where a result is not what it expects
    def evaluate_turn(self, turn, results, done):
        for result in results:
            assert "town" in result.text, "where is the town?"
        return TurnOutcome()


class Raises(Digit):  # not every string is a turn
    def parse(self, action, cut=False):
        action.encode()  # fails for lone surrogates
        return super().parse(action, cut)


class RaisesElsewhere(Digit):  # in the standard library, at its first turn
    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": json.loads("no JSON")})


class Surrogate(Digit):  # what comes back is no Unicode
    def resolve(self, *args):
        return "\udfff", *super().resolve(*args)[1:]


class Clock(Digit):  # tells the time
    def evaluate_turn(self, turn, results, done):
        return TurnOutcome(info={"now": time.perf_counter()})


class OwnDice(Digit):  # randomness of its own
    def question(self):
        return f"Which digit? {np.random.default_rng().integers(2**62)}"


class Unpicklable(Digit):  # holds a lock
    def begin(self, options):
        self.lock = threading.Lock()
        return super().begin(options)


class Forgetful(Digit):  # a copy loses its digit
    def begin(self, options):
        super().begin(options)
        self.secret = self.digit
        return f"It is {self.digit}.", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"right": 0.0}, info={"digit": self.secret})

    def __getstate__(self):
        return {**self.__dict__, "secret": "lost"}


class HashOrder(Digit):  # tells the words of a set in their order there
    def question(self):
        return " ".join(set(_WORDS))


class HashOrderOfMaker(Digit):  # the same, but the order is fixed once, when it is made
    def __init__(self, **common):
        super().__init__(**common)
        self.words = list(set(_WORDS))

    def question(self):
        return " ".join(self.words)


class Counter(Echo):  # keeps a count for one environment, and a batch key that it shares with those of others
    batch_key = "counter"
    interchangeable = True

    def __init__(self):
        self.count = 0

    def execute(self, arguments):
        self.count += 1
        return ToolResult(f"{self.count} {arguments['text']}")


class SharedLane(Digit):  # its tool has a state and says that others may do its work
    def __init__(self, **common):
        super().__init__(Counter(), **common)

    def begin(self, options):
        self.tools["echo"].count = 0
        return super().begin(options)
