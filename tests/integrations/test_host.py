"""Any environment that speaks text, in the trainer and in an `Episode`."""

import json

import gymnasium
import numpy as np
import pytest
from plug_setup import make_policy

import agent_envs
from agent_envs.integrations import Episode, hosting
from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, Turn, TurnOutcome
from agent_envs.utils.checker import check_agent_env
from trainers import evaluate, grpo
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
    assert (
        first == "Say red."
        and info["instructions"].startswith("Do as you are told.")
        and "<answer>" in info["instructions"]
    )
    assert env.step("<think>red</think><answer>red</answer>")[:3] == (
        "<information>Thank you.</information>",
        1.1,
        True,
    )
    plain = agent_envs.host(lambda: gymnasium.make(PLAIN, disable_env_checker=True, words=["red"]), "Obey.")
    assert plain.reset(seed=0)[1]["instructions"] == "Obey."
    assert plain.step("<think>\nred?\n</think>\n\nno idea")[0] == "No, say red."  # a thought is no action


def test_native_calls_reach_it():
    episode = Episode(PLAIN, native=True, words=["red"])
    assert [tool["function"]["name"] for tool in episode.tools] == ["act"]
    episode.start(0)
    reply = episode.call([("act", {"action": "red"})])
    assert reply.results == ("Thank you.",) and reply.reward == 1.1 and reply.terminated


def test_what_it_raises():
    env = hosting.make(PLAIN)
    env.reset(seed=0)
    text, reward, _, truncated, info = env.step("scold")  # a ValueError is the agent's mistake
    assert "mind your words" in text and reward == 0 and not truncated and not info["tool_faults"]
    text, reward, _, truncated, info = env.step("crash")
    assert "out of order" in text and reward == 0 and truncated and info["tool_faults"] == 1


class Numbers(gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return 5, {}


def test_what_does_not_speak_text_is_refused():
    with pytest.raises(ValueError, match=r"FrozenLakeEnv takes Discrete\(4\), not text"):
        hosting.make("FrozenLake-v1")
    with pytest.raises(ValueError, match="must be text, got int"):
        agent_envs.host(Numbers).reset(seed=0)
    with pytest.raises(ValueError, match="split must be"):
        agent_envs.host(Numbers, split="test")
    with pytest.raises(gymnasium.error.Error, match="Nowhere"):
        make_envs("Nowhere-v0", "{}", "train", 1)


def test_registered_with_host():
    gymnasium.register("Test/Hosted-v0", entry_point=lambda **options: agent_envs.host(Words, "Obey.", **options))
    try:
        envs = make_envs("Test/Hosted-v0", '{"max_turns": 2}', "validation", 2)
        assert [env.split for env in envs.envs] == ["validation"] * 2 and envs.envs[0].max_turns == 2
        assert envs.reset(seed=[0, 0])[1]["instructions"][0] == "Obey."
    finally:
        del gymnasium.registry["Test/Hosted-v0"]


class Words:
    """No `gymnasium.Env` at all."""

    def reset(self, seed=None):
        return f"seed {seed}", {"success": False}

    def step(self, action):
        return "so", 0.5, True, False, {"success": True}


def test_success_is_the_score_where_the_environment_tells_it():
    env = agent_envs.host(Words)
    assert env.reset(seed=3)[0] == "seed 3"
    assert env.step("x")[4]["score"] == 1.0


class Long:
    """Says much, and numbers of NumPy beside it."""

    def reset(self, seed=None):
        return "r" * 30_000, {"n": np.int64(2)}

    def step(self, action):
        return "s" * 30_000, 0.0, False, False, {"share": np.float32(0.5), "ok": np.bool_(True)}


def test_what_it_says_is_whole():
    env = agent_envs.host(Long, "Go on.")
    observation, info = env.reset(seed=0)
    assert len(observation) == 30_000 and info["n"] == 2
    observation, *_, info = env.step("a")
    assert len(observation) == 30_000 and info["share"] == 0.5 and info["ok"] is True


def test_the_trainer_trains_in_it(tmp_path):
    policy = make_policy("words")
    policy.model.save_pretrained(tmp_path / "start")
    policy.tokenizer.save_pretrained(tmp_path / "start")
    args = grpo.Args(
        env=PLAIN, env_kwargs='{"words": ["e", "t"]}', model=str(tmp_path / "start"), out=tmp_path / "run", updates=3,
        questions_per_update=4, group_size=8, max_new_tokens=6, eval_every=3, eval_questions=8, final_questions=16, lr=3e-3,
    )  # fmt: skip
    summary = grpo.main(args)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3] and summary["score"] == "score"
    assert all(0 < line["train/return"] <= 3.3 and line["reward/env"] == line["train/return"] for line in lines[1:])
    assert lines[-1]["policy/grad_norm"] > 0
    rows = evaluate.main(
        evaluate.Args(env=PLAIN, checkpoint=(tmp_path / "run" / "checkpoint-3",), questions=4, out=tmp_path / "table")
    )
    assert len(rows) == 1 and rows[0]["episodes"] == 4


def test_the_tiny_policy_has_nobody_to_learn_from_there(tmp_path):
    with pytest.raises(ValueError, match="scripted agents, which a hosted environment does not have: give a model"):
        grpo.main(grpo.Args(env=PLAIN, out=tmp_path / "run"))


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


@pytest.fixture
def odd():
    gymnasium.register("Test/Odd-v0", entry_point=Odd)
    yield "Test/Odd-v0"
    del gymnasium.registry["Test/Odd-v0"]


def test_a_context_in_an_info_is_no_conversation(odd):
    episode = Episode(odd)
    episode.start(0)
    reply = episode.step("red")
    assert reply.context is None and reply.text == "go on"


def test_success_stays_as_it_was_said_last():
    env = agent_envs.host(Odd)
    env.reset(seed=0)
    assert [env.step(turn)[4]["score"] for turn in ("red", "green", "end")] == [0.0, 0.0, 0.0]


def test_errors_of_the_environment_are_no_mistakes_of_the_agent():
    env = agent_envs.host(Odd)
    env.reset(seed=0)
    *_, truncated, info = env.step("divide")
    assert truncated and info["tool_faults"] == 1


def test_all_actions_of_a_turn_are_paid_until_the_end():
    env = agent_envs.host(Odd, format="ragen", max_calls=3)
    env.reset(seed=0)
    calls = [ToolCall("act", {"action": action}) for action in ("red", "end", "blue")]
    _, reward, terminated, *_ = env.step(env.format.write(Turn(calls=tuple(calls))))
    assert (reward, terminated, env.hosted.number) == (2.0, True, 2)


def test_native_functions_come_with_what_the_environment_says(odd):
    episode = Episode(odd, native=True)
    assert episode.start(0)[0]["content"].startswith("Say it. Use the functions")


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


def test_a_mixture_gives_a_split_to_a_task_that_takes_none():
    gymnasium.register("Test/NoSplit-v0", entry_point=NoSplit)
    try:
        said = {
            split: gymnasium.make("AgentR1/Mixture-v0", tasks={"Test/NoSplit-v0": 1}, split=split).reset(seed=0)[0]
            for split in ("train", "validation")
        }
        assert said["train"] != said["validation"]
    finally:
        del gymnasium.registry["Test/NoSplit-v0"]


class TakesAnything(Numbers):
    """Speaks text, and takes whatever it is given."""

    action_space = observation_space = gymnasium.spaces.Text(40)

    def __init__(self, **kwargs):
        self.given = kwargs

    def reset(self, *, seed=None, options=None):
        return "Guess.", {}


def test_the_hosts_arguments_are_the_hosts_where_an_environment_takes_anything():
    gymnasium.register("Mine/Anything-v0", entry_point=TakesAnything)
    try:
        env = hosting.make("Mine/Anything-v0", instructions="Guess!", max_turns=3, format="ragen", words=["red"])
    finally:
        del gymnasium.registry["Mine/Anything-v0"]
    assert env.system_prompt.startswith("Guess!")
    assert env.max_turns == 3
    assert env.hosted.unwrapped.given.keys() == {"words"}


def test_wrappers_that_are_left_out_are_named():
    def make_wrapped(**options):
        made = gymnasium.make("AgentR1/Bandit-v0", disable_env_checker=True, **options)
        return gymnasium.wrappers.TransformReward(made, lambda reward: 2 * reward)

    gymnasium.register("Mine/Wrapped-v0", entry_point=make_wrapped)
    try:
        with pytest.warns(UserWarning, match="TransformReward around it is left out"):
            hosting.make("Mine/Wrapped-v0")
    finally:
        del gymnasium.registry["Mine/Wrapped-v0"]
