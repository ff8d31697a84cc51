"""Any environment that speaks text, in the trainer and in an `Episode`."""

import gymnasium
import numpy as np
import pytest

import agent_envs
from agent_envs.integrations import Episode, hosting
from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, Turn, TurnOutcome
from agent_envs.utils.checker import check_agent_env
from trainers import grpo
from trainers.factory import make_envs

PLAIN, TURNS = "plain_env:Mine/Plain-v0", ["red green", "say it", "blue white black brown"]


def test_it_says_and_pays_what_the_environment_does():
    plain, episode = gymnasium.make(PLAIN, disable_env_checker=True), Episode(PLAIN)
    vector = make_envs(PLAIN, "{}", "train", 1)
    for seed in range(5):
        first, _ = plain.reset(seed=seed)
        assert episode.start(seed)[1]["content"] == first == vector.reset(seed=[seed])[0][0]
        for turn in TURNS:
            said = plain.step(turn)[:4]
            reply, together = episode.step(turn), vector.step([turn])
            assert (reply.text, reply.reward, reply.terminated, reply.truncated) == said
            assert (together[0][0], *(float(part[0]) for part in together[1:4])) == said
            if reply.done:
                assert reply.metrics["score"] == pytest.approx(sum(episode.rewards))
                break


def test_a_mixture_takes_it_too():
    env = MixtureEnv({PLAIN: 1, "AgentR1/Bandit-v0": 1}, split="validation")
    alone, seed = hosting.make(PLAIN, split="validation"), int(np.random.default_rng(0).integers(2**31))
    assert env.reset(seed=0, options={"task": PLAIN})[0] == alone.reset(seed=seed)[0]
    assert env.step(TURNS[0])[:4] == alone.step(TURNS[0])[:4]


def test_it_keeps_the_contract_of_this_suite():
    check_agent_env(hosting.make(PLAIN), steps=40)


def test_held_out_episodes_have_seeds_of_their_own():
    train, held_out, again = hosting.make(PLAIN), hosting.make(PLAIN, split="validation"), hosting.make(PLAIN)
    asked = [[env.reset(seed=seed)[0] for seed in range(20)] for env in (train, held_out, again)]
    assert asked[0] == asked[2] != asked[1]
    assert asked[1][3] == again.hosted.reset(seed=2**31 + 3)[0]


def test_a_limit_of_its_own_holds():
    env = hosting.make("plain_env:Mine/Limited-v0")
    assert env.max_turns == 2 and hosting.make(PLAIN, max_turns=1).max_turns == 1
    env.reset(seed=0)
    assert env.step("hm")[3] is False and env.step("hm")[3] is True


def test_instructions_and_formats():
    env = hosting.make(PLAIN, instructions="Do as you are told.", format="ragen", words=["red"])
    first, info = env.reset(seed=0)
    assert first == "Say red." and info["instructions"].startswith("Do as you are told.")
    assert "<answer>" in info["instructions"]
    outcome = env.step("<think>red</think><answer>red</answer>")[:3]
    assert outcome == ("<information>Thank you.</information>", 1.1, True)
    plain = agent_envs.host(lambda: gymnasium.make(PLAIN, disable_env_checker=True, words=["red"]), "Obey.")
    assert plain.reset(seed=0)[1]["instructions"] == "Obey."
    assert plain.step("<think>\nred?\n</think>\n\nno idea")[0] == "No, say red."  # a thought is no action


def test_what_it_raises():
    env, odd = hosting.make(PLAIN), agent_envs.host(Odd)
    env.reset(seed=0), odd.reset(seed=0)
    text, reward, _, truncated, info = env.step("scold")  # a ValueError is the agent's mistake
    assert "mind your words" in text and reward == 0 and not truncated and not info["tool_faults"]
    for broken, turn, says in ((env, "crash", "out of order"), (odd, "divide", "by itself")):
        text, reward, _, truncated, info = broken.step(turn)
        assert says in text and reward == 0 and truncated and info["tool_faults"] == 1


class Numbers(gymnasium.Env):
    """Takes whatever it is given, and says a number."""

    action_space = observation_space = gymnasium.spaces.Text(40)

    def __init__(self, says=5, **kwargs):
        self.says, self.given = says, kwargs

    def reset(self, *, seed=None, options=None):
        return self.says, {}


class TextOnly:
    def reset(self, *, seed=None):
        return "Guess a number."


def test_what_does_not_speak_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"FrozenLakeEnv takes Discrete\(4\), not text"):
        hosting.make("FrozenLake-v1")
    with pytest.raises(ValueError, match="must be text, got int"):
        agent_envs.host(Numbers).reset(seed=0)
    with pytest.raises(ValueError, match=r"reset must return \(observation, info\), got 'Guess a number\.'"):
        agent_envs.host(TextOnly).reset(seed=0)
    with pytest.raises(ValueError, match="split must be"):
        agent_envs.host(Numbers, split="test")
    with pytest.raises(gymnasium.error.Error, match="Nowhere"):
        make_envs("Nowhere-v0", "{}", "train", 1)
    with pytest.raises(ValueError, match="scripted agents, which a hosted environment does not have: give a model"):
        grpo.main(grpo.Args(env=PLAIN, out=tmp_path / "run"))


@pytest.mark.parametrize(
    "stepped", [("so", 1.0, True, {}), ("so", "one", True, False, {}), ("so", 1.0, True, False, None)]
)
def test_a_step_of_another_form_is_no_mistake_of_the_agent(stepped, monkeypatch):
    monkeypatch.setattr(Words, "step", lambda self, action: stepped)
    env = agent_envs.host(Words)
    env.reset(seed=0)
    _, _, _, truncated, info = env.step("hm")
    assert truncated and info["tool_faults"] == 1


@pytest.fixture
def register():
    """Registers an environment for a while."""
    ids = []

    def register(id, entry_point):
        gymnasium.register(id, entry_point=entry_point)
        ids.append(id)
        return id

    yield register
    for id in ids:
        del gymnasium.registry[id]


class Words:
    """No `gymnasium.Env` at all."""

    def reset(self, seed=None):
        return f"seed {seed}", {"success": False}

    def step(self, action):
        return "so", 0.5, True, False, {"success": True}


class Odd(gymnasium.Env):
    """An info with names of this suite, a success that is said once, and errors of its own."""

    action_space = observation_space = gymnasium.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return f"seed {seed}", {"instructions": "Say it.", "context": "the answer is blue"}

    def step(self, action):
        self.number += 1
        if action == "divide":
            raise ZeroDivisionError("by itself")
        info = {"context": "the answer is blue", "success": np.bool_(False)} if self.number == 1 else {}
        return "go on", 1.0, action == "end", False, info


def test_a_context_in_an_info_is_no_conversation(register):
    episode = Episode(register("Test/Odd-v0", Odd))
    episode.start(0)
    reply = episode.step("red")
    assert reply.context is None and reply.text == "go on"


def test_success_stays_as_it_was_said_last():
    env = agent_envs.host(Odd)
    env.reset(seed=0)
    assert [env.step(turn)[4]["score"] for turn in ("red", "green", "end")] == [0.0, 0.0, 0.0]
    words = agent_envs.host(Words)
    assert words.reset(seed=3)[0] == "seed 3" and words.step("x")[4]["score"] == 1.0


def test_all_actions_of_a_turn_are_paid_until_the_end():
    env = agent_envs.host(Odd, format="ragen", max_calls=3)
    env.reset(seed=0)
    calls = [ToolCall("act", {"action": action}) for action in ("red", "end", "blue")]
    _, reward, terminated, *_ = env.step(env.format.write(Turn(calls=tuple(calls))))
    assert (reward, terminated, env.hosted.number) == (2.0, True, 2)


def test_splits_that_are_asked_for_from_outside():
    """A function without ``split`` makes what is held out afterwards; a task with splits of its own refuses, and does not
    play what is trained on."""
    env = agent_envs.host(Odd)
    env.hold_out("validation")
    assert env.reset(seed=3)[0] == f"seed {2**31 + 3}"
    with pytest.raises(ValueError, match="SokobanEnv has splits of its own: make it with split='validation'"):
        MixtureEnv({"AgentR1/Sokoban-v0": 1}).hold_out("validation")
    questions = gymnasium.make("AgentR1/MiniWiki-Easy-v0", questions=8).unwrapped
    questions.hold_out("train")
    with pytest.raises(ValueError, match="QAEnv has splits of its own: make it with split='validation'"):
        questions.hold_out("validation")


class NoSplit(ToolEnv):
    """A task of our own whose constructor takes no split."""

    def __init__(self, max_turns: int = 4, format: str = "tags", render_mode: str | None = None):
        super().__init__((), instructions="Go.", max_turns=max_turns, format=format, render_mode=render_mode)

    def begin(self, options):
        return f"start {self.np_random.integers(2**31)}", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"em": 0.0})


def test_a_mixture_gives_a_split_to_a_task_that_takes_none(register):
    tasks = {register("Test/NoSplit-v0", NoSplit): 1}
    train, held_out = (MixtureEnv(tasks, split=split).reset(seed=0)[0] for split in ("train", "validation"))
    assert train != held_out


def test_the_hosts_arguments_are_the_hosts_where_an_environment_takes_anything(register):
    options = {"instructions": "Guess!", "max_turns": 3, "format": "ragen", "says": "Guess."}
    env = hosting.make(register("Mine/Anything-v0", Numbers), **options, words=["red"])
    assert env.system_prompt.startswith("Guess!") and env.max_turns == 3
    assert env.hosted.unwrapped.given.keys() == {"words"}


def test_wrappers_that_are_left_out_are_named(register):
    def make_wrapped(**options):
        made = gymnasium.make("AgentR1/Bandit-v0", disable_env_checker=True, **options)
        return gymnasium.wrappers.TransformReward(made, lambda reward: 2 * reward)

    with pytest.warns(UserWarning, match="its wrapper TransformReward is left out here"):
        hosting.make(register("Mine/Wrapped-v0", make_wrapped))
