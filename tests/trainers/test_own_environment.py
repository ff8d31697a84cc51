"""An environment of one's own trains as docs/environments.md has it: found in the working folder, without a `split`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest

from agent_envs.integrations import hosting
from agent_envs.rewards import Metric, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn, TurnOutcome
from agent_envs.utils.scripts import is_drawn, roll_out, roll_out_many
from agent_envs.vector import ToolVectorEnv
from trainers import grpo
from trainers.evaluation.naive_rag import can_be_searched_for
from trainers.factory import make_envs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8").partition("## One of your own")[2]
CODE, ID = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], re.search(r"trainers.grpo --env (\S+)", PAGE)[1]
SMALL = dict(questions_per_update=2, group_size=2, max_new_tokens=4, eval_every=1, eval_questions=2, final_questions=2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The module of the page in the working folder, which is not on the path, as for a script that lies elsewhere."""
    (tmp_path / "my_module.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    yield tmp_path
    gymnasium.registry.pop(ID.partition(":")[2], None)
    sys.modules.pop("my_module", None)


def test_that_of_the_page_trains(folder, save_model):
    summary = grpo.main(grpo.Args(env=ID, model=save_model("words"), out=folder / "run", updates=2, **SMALL))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and summary["score"] == "success"


class Plain(ToolEnv):
    """Takes no argument at all, and is registered without a vector."""

    REWARD = Reward(right=(1.0, Metric("success")))

    def __init__(self):
        super().__init__([], instructions="Say the number.")

    def begin(self, options):
        self.number = int(self.np_random.integers(10**9))
        return f"It is {self.number}.", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"success": float(turn.answer == str(self.number))})


class Odd(Plain):
    """Uses names that mean something in this suite, ignores the reset's options, and does not follow what the agent finds."""

    SCRIPTS: ClassVar = {name: lambda env, rng: iter_turns(env) for name in ("random", "scripted")}
    questions, tasks, weights = ("a", "b", "c"), ("a list",), (1.0,)

    def evaluate_turn(self, turn, results, done):
        said = {"action": "other", "observation": "other", "reward": 7.0, "instructions": "other"}
        return TurnOutcome({"success": float(turn.answer == str(self.number))}, said)

    def describe_instance(self):
        return {"supporting": ["a book", "a page"]}


def iter_turns(env):
    yield Turn(answer=str(env.number))


def test_names_of_a_task_replace_nothing_that_is_learned_from():
    envs = ToolVectorEnv(Odd, 2)
    played = [turns for _ in range(2) for turns in roll_out_many(envs, [0, 1], Odd.SCRIPTS["scripted"])]
    for (turn,) in (*played, roll_out(Odd(), Odd.SCRIPTS["scripted"], seed=0)):
        assert (
            turn["action"].startswith("<answer>") and turn["observation"].startswith("It is ") and turn["reward"] == 1.0
        )
    assert [turns[0]["recorded"]["found"] for turns in played] == [[]] * 4
    numbers = [turns[0]["observation"] for turns in played]
    assert numbers[:2] == numbers[2:], "the numbers of questions seed what ignores them"
    assert not is_drawn(Odd()) and not can_be_searched_for(Odd())


@pytest.mark.parametrize("name", ["context", "valid", "turns", "tool_faults"])
def test_names_that_each_info_has_are_refused(name, monkeypatch):
    monkeypatch.setattr(Plain, "evaluate_turn", lambda *_: TurnOutcome({"success": 0.0}, {name: 1}))
    env = Plain()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"evaluate_turn reports \['{name}'\], but ToolEnv has"):
        env.step("x")


@pytest.fixture
def plain():
    gymnasium.register("Mine/Plain-v0", entry_point=Plain)
    yield "Mine/Plain-v0"
    del gymnasium.registry["Mine/Plain-v0"]


def test_one_without_arguments_has_splits_and_a_vector(plain):
    train, held_out = (make_envs(plain, "{}", split, 3) for split in ("train", "validation"))
    asked = [envs.reset(seed=[0, 1, 2])[0] for envs in (train, held_out)]
    assert not set(asked[0]) & set(asked[1]) and train.spec is not None
    assert hosting.make(plain, split="validation").reset(seed=0)[0] == asked[1][0]
    mixed = make_envs("AgentR1/Mixture-v0", json.dumps({"tasks": {plain: 1}}), "train", 1)
    assert mixed.reset(seed=0)[0][0].startswith("It is ")  # it has no render_mode
    with pytest.raises(ValueError, match="split must be 'train' or 'validation', got 'test'"):
        make_envs(plain, "{}", "test", 1)


def test_the_tiny_policy_says_what_it_cannot_learn_from(plain, tmp_path):
    with pytest.raises(ValueError, match=r"Plain\.SCRIPTS lacks 'random' and 'scripted': add them, or give a model"):
        grpo.main(grpo.Args(env=plain, out=tmp_path / "run", **SMALL))


def test_a_script_that_lies_elsewhere_finds_the_module_in_the_working_folder(folder, tmp_path_factory):
    script = tmp_path_factory.mktemp("scripts") / "look.py"
    script.write_text(f"from agent_envs.integrations import hosting\nprint(hosting.make({ID!r}).reset(seed=0)[0])\n")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert run.stdout == "I have thought of a number between 1 and 100.\n", run.stderr
