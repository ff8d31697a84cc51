"""`Menu`: what a choice does, what its agent sees, and that Gymnasium takes it."""

import copy
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agent_envs.games import frozenlake, sokoban
from agent_envs.integrations import Menu

GAMES = ("Bandit", "FrozenLake", "Sokoban")


def make(game: str, **env_kwargs) -> Menu:
    return Menu(gymnasium.make(f"AgentR1/{game}-v0", **env_kwargs))


def play(env: Menu, seed: int):
    """An episode of random choices: what each was, in text, and what came of it."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    over = False
    while not over:
        choice = int(rng.integers(env.action_space.n))
        text = list(env.unwrapped.menu())[choice]
        result = env.step(choice)
        over = result[2] or result[3]
        yield text, result


@pytest.mark.parametrize("game", GAMES)
def test_gymnasium_checks_it(game):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")  # it is a wrapper
        check_env(make(game), skip_render_check=True)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("format", ["ragen", "hermes"])
def test_a_choice_is_its_turn(game, format):
    env = make(game, format=format)
    alone = gymnasium.make(f"AgentR1/{game}-v0", format=format, max_turns=env.unwrapped.max_turns)
    for seed in range(5):
        alone.reset(seed=seed)
        for text, (_, *came) in play(env, seed):
            assert came == list(alone.step(text)[1:]) and came[-1]["valid"] and came[-1]["tool_faults"] == 0


def test_the_board_can_be_read_back():
    for game, symbols, read in (("FrozenLake", "_OGPX√", frozenlake.read), ("Sokoban", "#_OX√PS", sokoban.read)):
        env = make(game)
        size, shown = env.unwrapped.size, [env.reset(seed=1)[0]]
        shown += [result[0] for _, result in play(env, 1)]
        for played, observation in enumerate(shown):
            assert observation.dtype == np.float32 and env.observation_space.contains(observation)
            cells = observation[:-1].reshape(size, size, len(symbols))
            assert (cells.sum(axis=-1) == 1).all() and observation[-1] == np.float32(1 - played / 10)
        board = "\n".join(" ".join(symbols[cell] for cell in row) for row in cells.argmax(axis=-1))
        assert read(board) == read(env.unwrapped.state_text())


def test_text_is_bytes_and_never_cut():
    env = make("Bandit")
    for seed in range(4):
        observation, info = env.reset(seed=seed)
        text = (observation * 255).round().astype(np.uint8).tobytes().rstrip(b"\0").decode()
        assert text == env.unwrapped.first_observation and all(name in text for name in info["arms"])
    with pytest.raises(ValueError, match="max_bytes"):
        Menu(gymnasium.make("AgentR1/Bandit-v0"), max_bytes=8)


@pytest.mark.parametrize(("game", "how"), [("Sokoban", {}), ("FrozenLake", {"slippery": False}), ("FrozenLake", {})])
def test_masks_are_the_choices_that_change_anything(game, how):
    env, seen = make(game, **how), set()
    slips = game == "FrozenLake" and how == {}  # ice may lead back for a while
    for seed in range(4):
        before, _ = env.reset(seed=seed)
        for choice, allowed in enumerate(env.action_masks()):
            changed = False
            for number in range(12 if slips else 1):
                attempt = copy.deepcopy(env)
                if slips:
                    attempt.unwrapped.lake.np_random = np.random.default_rng(number)
                changed = changed or (attempt.step(choice)[0][:-1] != before[:-1]).any()
            assert changed == allowed
            seen.add(bool(allowed))
    assert seen == ({True} if slips else {True, False})


def test_what_is_not_on_the_menu_is_refused():
    env = make("Sokoban")
    env.reset(seed=0)
    for action in (-1, 4, "Up", 1.0):
        with pytest.raises(ValueError, match="0 to 3"):
            env.step(action)
    for game, small in (("MiniWiki", {"entities": 100, "questions": 20}), ("Countdown", {})):  # free text
        with pytest.raises(ValueError, match=r"has no menu: .*Bandit, FrozenLake and Sokoban .*menu\(\)"):
            make(game, **small)


class Door(gymnasium.Env):
    """An environment of someone else, with a menu."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "There is a door.", {}

    def step(self, action):
        return "It is open.", float(action == "open it"), True, False, {}

    def menu(self):
        return {"wait": True, "open it": True, "close it": False}


def test_an_environment_of_your_own():
    env = Menu(Door(), max_bytes=16)
    assert env.action_space.n == 3 and list(env.action_masks()) == [True, True, False]
    assert env.step(1)[1] == 1.0
