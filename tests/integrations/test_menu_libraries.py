"""PPO of other libraries learns games behind a `Menu`: the examples, in short."""

import importlib
from pathlib import Path

import pytest

from agent_envs.integrations.menu import Menu

pytestmark = pytest.mark.plug
EXAMPLES = Path(__file__).parents[2] / "examples" / "plug"
MARGIN = 0.1  # of success: two standard errors of a difference, over 200 episodes each
LIBRARIES = {"sb3": "stable_baselines3", "tianshou_ppo": "tianshou", "rllib": "ray.rllib", "cleanrl": "torch"}
# Small boards, where little training tells: the id, its arguments, and choices in training.
GAMES = {
    "FrozenLake": ("AgentR1/FrozenLake-v0", {"slippery": False, "size": 3}, 6 * 1024),
    "Sokoban": ("AgentR1/Sokoban-v0", {"size": 5, "moves": [1, 2], "max_actions": 4, "max_turns": 4}, 8 * 1024),
}


@pytest.fixture
def example(monkeypatch):
    """Import an example whose library is installed."""
    started = []

    def load(name: str):
        pytest.importorskip(LIBRARIES[name], reason=f"needs {LIBRARIES[name]}", exc_type=ImportError)
        monkeypatch.syspath_prepend(str(EXAMPLES))
        if name == "rllib":
            started.append(importlib.import_module("ray"))
            started[0].init(num_cpus=1, include_dashboard=False, object_store_memory=10**8, log_to_driver=False)
        return importlib.import_module(name)

    yield load
    for ray in started:
        ray.shutdown()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_ppo_learns(example, library, game):
    module, (id, kwargs, steps) = example(library), GAMES[game]
    held_out = importlib.import_module("held_out")
    agent = module.train(id, steps, seed=0, **kwargs)
    learned, random = (held_out.success(one, id, **kwargs) for one in (agent, held_out.random_agent()))
    assert learned > random + MARGIN


def test_maskable_ppo_takes_the_masks(example):
    pytest.importorskip("sb3_contrib", reason="needs sb3_contrib", exc_type=ImportError)
    module, (id, kwargs, steps) = example("sb3"), GAMES["Sokoban"]
    held_out = importlib.import_module("held_out")
    agent = module.train(id, steps // 2, seed=0, masks=True, **kwargs)
    chosen = []

    def watched(observation, masks):
        chosen.append(bool(masks[agent(observation, masks)]))
        return agent(observation, masks)

    learned, random = (held_out.success(one, id, **kwargs) for one in (watched, held_out.random_agent(masks=True)))
    assert all(chosen) and learned > random + MARGIN


def test_the_vectors_of_sb3_do_without_a_picture():
    env_util = pytest.importorskip(
        "stable_baselines3.common.env_util", reason="needs stable_baselines3", exc_type=ImportError
    )
    envs = env_util.make_vec_env(
        GAMES["FrozenLake"][0], n_envs=2, wrapper_class=Menu
    )  # asks for render_mode="rgb_array"
    assert envs.reset().shape == (2, *envs.observation_space.shape) and envs.render_mode is None
