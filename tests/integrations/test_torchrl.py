"""`agent_envs.integrations.torchrl` and TorchRL's own `GymEnv`, against TorchRL."""

import runpy
import sys
from pathlib import Path

import gymnasium
import pytest
from plug_setup import LAKE, MINIWIKI, SMALL, make_policy, ours

pytestmark = pytest.mark.plug
pytest.importorskip("torchrl", reason="pip install torchrl", exc_type=ImportError)

import torch  # noqa: E402
from tensordict import TensorDict, lazy_stack  # noqa: E402
from torchrl.envs import GymEnv  # noqa: E402
from torchrl.modules.llm.policies import Tokens, TransformersWrapper  # noqa: E402

from agent_envs.integrations.torchrl import chat_env  # noqa: E402
from trainers.tiny.cold_start import SHIPPED  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_torchrl.py"


@pytest.mark.parametrize(("id", "small"), [(MINIWIKI, SMALL), (LAKE, {}), ("AgentR1/Mixture-v0", {})])
def test_gym_env_says_and_pays_what_gymnasium_does(id, small):
    env, plain = GymEnv(id, **small), gymnasium.make(id, **small)
    state, (observation, _) = env.reset(seed=3), plain.reset(seed=3)
    assert state["observation"] == observation
    plain.action_space.seed(0)
    for _ in range(6):
        turn = plain.action_space.sample()
        state["action"] = turn
        state = env.step(state)["next"]
        observation, reward, terminated, truncated, _ = plain.step(turn)
        assert state["observation"] == observation and state["reward"].item() == pytest.approx(reward)
        assert (bool(state["terminated"]), bool(state["truncated"])) == (terminated, truncated)
        if terminated or truncated:
            break


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize(
    ("id", "kwargs"), [(MINIWIKI, SMALL), (LAKE, {}), (MINIWIKI, {**SMALL, "context": "window:1"})]
)
def test_ids_and_rewards_are_those_of_our_rollout(kind, id, kwargs):
    policy, seeds, group_size = make_policy(kind), [11, 12], 3
    episodes = ours(policy, id, kwargs, seeds, group_size)
    env = chat_env(id, policy.tokenizer, num_envs=6, group_size=group_size, **kwargs)
    asked = torch.tensor([seed for seed in seeds for _ in range(group_size)])
    state, turn = env.reset(TensorDict({"seed": asked}, batch_size=6)), 0
    while not state["done"].all():
        prompts = [ids.tolist() for ids in state["tokens"].get("prompt", as_list=True)]
        for prompt, episode in zip(prompts, episodes, strict=True):
            assert turn >= len(episode.steps) or prompt == episode.steps[turn].prompt
        said = [episode.steps[turn].tokens if turn < len(episode.steps) else [] for episode in episodes]
        fulls = [torch.tensor(prompt + own) for prompt, own in zip(prompts, said, strict=True)]
        state = env.step(lazy_stack([TensorDict({"tokens": Tokens(full=full)}) for full in fulls]))["next"]
        paid = [episode.steps[turn].reward if turn < len(episode.steps) else 0.0 for episode in episodes]
        assert state["reward"].view(-1).tolist() == pytest.approx(paid)
        turn += 1
    assert turn == max(len(episode.steps) for episode in episodes)
    assert [metrics["turns"] for metrics in env.metrics] == [len(episode.steps) for episode in episodes]


def test_torchrls_policy_plays_in_it():
    policy = make_policy("words")
    env = chat_env(MINIWIKI, policy.tokenizer, num_envs=4, group_size=2, **SMALL)
    env.set_seed(1)
    wrapper = TransformersWrapper(
        policy.model, tokenizer=policy.tokenizer, input_mode="tokens", generate=True, pad_output=False,
        return_log_probs=True, generate_kwargs={"max_new_tokens": 6, "do_sample": True},
    )  # fmt: skip
    played = env.rollout(env.max_turns, wrapper)
    assert played.batch_size[0] == 4 and played["next", "truncated"][:, -1].all()
    seeds = played["seed"][:, 0].tolist()
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    for t in range(played.batch_size[1]):
        for row in played[:, t].unbind(0):
            tokens, following = row["tokens"], row["next", "tokens"].prompt.tolist()
            turn = tokens.response.tolist()
            assert tokens.full.tolist() == tokens.prompt.tolist() + turn
            assert len(row["log_probs"].response) == len(turn)
            kept = env._token_episodes[0].cut(turn)
            assert following[: len(tokens.prompt) + len(kept)] == tokens.prompt.tolist() + kept


def test_members_of_a_group_get_its_questions_whenever_they_are_reset():
    policy = make_policy("words")
    env = chat_env(MINIWIKI, policy.tokenizer, num_envs=4, group_size=2, **SMALL)
    env.set_seed(7)
    env.reset()
    drawn = [list(env._seeds)]
    for who in (0, 1):  # one after the other
        mask = torch.tensor([[i % 2 == who] for i in range(4)])
        env.reset(TensorDict({"_reset": mask}, batch_size=4))
        drawn.append(list(env._seeds))
    assert drawn[1][1] == drawn[0][1] and drawn[1][0] != drawn[0][0]
    assert drawn[2][0] == drawn[2][1] != drawn[2][2] == drawn[2][3]
    with pytest.raises(ValueError, match="must divide"):
        chat_env(MINIWIKI, policy.tokenizer, num_envs=4, group_size=3, **SMALL)


@pytest.mark.parametrize("with_model", [False, True])
def test_the_example_runs(with_model, monkeypatch, capsys):
    arguments = ["--env", "AgentR1/Sokoban-v0"]
    if with_model:
        arguments = ["--model", str(SHIPPED), "--new-tokens", "64"]
    monkeypatch.setattr(sys, "argv", ["in_torchrl.py", *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ("'valid': 1.0" if with_model else "Actions left: 9") in capsys.readouterr().out
