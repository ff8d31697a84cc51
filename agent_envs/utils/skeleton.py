"""``python -m agent_envs new my_task``: the folder of a small task that runs, is tested and trains, to write over."""

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template

_TASK = Template('''"""$title: find a number by asking whether it is higher or lower. Write your own task over it."""

import gymnasium

from agent_envs.rewards import AtEnd, Invalid, Metric, PerTurn, Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, Turn, TurnOutcome
from agent_envs.vector import vector_entry_point


def scripted(env, rng):
    """Halves the range, and knows no more than the agent. Scripts are baselines, and what the tiny policy imitates first."""
    low, high = 1, env.largest
    while low < high:
        middle = (low + high) // 2
        said = yield Turn(calls=(ToolCall("compare", {"number": middle}),))
        if "equal" in said:
            low = high = middle
        elif "higher" in said:
            low = middle + 1
        else:
            high = middle - 1
    yield Turn(answer=str(low))


def random_agent(env, rng):
    """Asks once, then guesses."""
    yield Turn(calls=(ToolCall("compare", {"number": rng.randint(1, env.largest)}),))
    yield Turn(answer=str(rng.randint(1, env.largest)))


def oracle(env, rng):
    """Knows the answer."""
    yield Turn(answer=str(env.secret))


class $task(ToolEnv):
    """Find a number between 1 and ``largest``.

    Args:
        largest: the numbers are 1 to this.
        max_turns: turns before truncation.
    """

    REWARD = Reward(right=(1.0, AtEnd(Metric("success"))), time=(-0.01, PerTurn()), invalid=(-0.1, Invalid()))
    SCRIPTS = {"random": random_agent, "scripted": scripted, "oracle": oracle}  # noqa: RUF012

    def __init__(self, largest: int = 20, max_turns: int = 7, **common):
        if largest < 2:
            raise ValueError(f"largest must be at least 2, got {largest}")
        self.largest = largest
        super().__init__([self.compare], instructions="Find the secret number.", max_turns=max_turns, **common)

    def compare(self, number: int) -> str:
        """tells whether the secret number is higher or lower than this one."""
        return "equal" if number == self.secret else "higher" if self.secret > number else "lower"

    def begin(self, options):
        """An episode starts: the first observation, and its info. Chance comes from ``self.np_random`` alone: a seed is an
        instance, and held-out episodes have seeds that training never draws."""
        self.secret = int(self.np_random.integers(1, self.largest + 1))
        return f"I have thought of a number between 1 and {self.largest}.", {}

    def evaluate_turn(self, turn, results, done):
        """What a turn came to. Rewards are made of these metrics, and never of what a tool wrote."""
        return TurnOutcome({"success": float(turn.answer == str(self.secret))})

    def describe_instance(self):
        """What records and reports of an episode show of it, and the agent never reads."""
        return {"golds": [str(self.secret)]}


make_vector = vector_entry_point($task)
gymnasium.register("$id", entry_point="$module:$task", vector_entry_point="$module:make_vector")
''')

_TEST = Template('''"""What earns a reward in $task, what must not, and that it keeps the promises of its kind."""

import gymnasium
import pytest
from $module import $task

from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import roll_out


@pytest.fixture
def env():
    return gymnasium.make("$id", disable_env_checker=True).unwrapped


def test_it_keeps_its_promises(env):
    check_agent_env(env, steps=40)


def test_the_right_answer_is_paid(env):
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(f"<answer>{env.secret}</answer>")
    assert terminated and reward == pytest.approx(0.99) and info["reward_terms"]["right"] == 1.0


def test_a_wrong_answer_and_a_turn_that_cannot_be_read_are_not(env):
    env.reset(seed=0)
    assert env.step("<compare>fifty</compare>")[1] == pytest.approx(-0.11)
    assert env.step("<answer>0</answer>")[1] == pytest.approx(-0.01)


def test_the_tool_tells_the_way(env):
    env.reset(seed=0)
    assert "higher" in env.step("<compare>0</compare>")[0] and "lower" in env.step("<compare>999</compare>")[0]


@pytest.mark.parametrize(("script", "least"), [("oracle", 1.0), ("scripted", 1.0), ("random", 0.0)])
def test_agents_reach_what_they_should(env, script, least):
    scores = [roll_out(env, $task.SCRIPTS[script], seed)[-1]["success"] for seed in range(50)]
    assert sum(scores) / len(scores) >= least


def test_held_out_episodes_are_others(env):
    held_out = $task(split="validation")
    secrets = []
    for one in (env, held_out):
        secrets.append([(one.reset(seed=seed), one.secret)[1] for seed in range(20)])
    assert secrets[0] != secrets[1]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="largest must be at least 2"):
        $task(largest=1)
''')

_README = Template("""# $title

`$module.py` is the task: its tool, its rewards, how an episode begins, what a turn came to, and agents that play it by
script. `test_$module.py` is its test. In this folder:

```
python -m agent_envs check $module:$id     # does it keep the promises of a text environment?
python -m agent_envs play $module:$id      # be the agent
python -m trainers.grpo --env $module:$id  # train
```

`python -m pytest` runs the test. Training makes a tiny policy, which first imitates the scripts `scripted` and `random` of
the task (minutes on a CPU; `--cold-start-steps` says how long); `--model PATH_OR_ID` trains a pretrained model, which needs no
scripts. Arguments of the task go into `--env-kwargs '{"largest": 100}'` (of `agent_envs`: `--kwargs`).
""")


def write(name: str, parent: Path) -> Path:
    """Write the folder ``parent/name`` with a task, its test and a README; returns it.

    Raises:
        ValueError: the name is not that of a Python module, or is that of one there is already.
        FileExistsError: there is such a folder: nothing is overwritten.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"a task is called like a Python module, in lower case, such as my_task; got {name!r}")
    folder = parent / name
    if folder.exists():
        raise FileExistsError(f"there is a {folder} already, and nothing is overwritten: choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"there is a Python module {name} already, which the task would hide: choose another name")
    task = "".join(word.capitalize() for word in name.split("_"))
    if task in re.findall(r"\b[A-Z]\w+", _TASK.template.partition("def ")[0]):
        raise ValueError(f"{task} is a name that the task itself imports: choose another name")
    words = {"module": name, "task": task, "id": f"Mine/{task}-v0", "title": name.replace("_", " ").capitalize()}
    folder.mkdir(parents=True)
    for file, template in ((f"{name}.py", _TASK), (f"test_{name}.py", _TEST), ("README.md", _README)):
        (folder / file).write_text(template.substitute(words), encoding="utf-8")
    return folder
