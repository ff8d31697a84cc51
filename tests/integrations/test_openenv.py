"""OpenEnv: its own server with our environments, played by its own client."""

import runpy
import sys
from pathlib import Path

import gymnasium
import pytest
from serving import serving
from stub_model import stand_in

import agent_envs.__main__

pytest.importorskip("openenv.core.env_server", reason="pip install -e '.[openenv]'", exc_type=ImportError)
import uvicorn
from openenv import GenericEnvClient

from agent_envs.integrations.openenv import make_app

pytestmark = pytest.mark.plug
MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}
TURNS = ["<search>a town</search>", "hm", "<answer>no idea</answer>"]
SESSIONS = 4


@pytest.fixture(scope="module")
def wiki():
    play_plainly(TURNS, 0, **SMALL)  # compiles the search, so that no client waits for it
    with serving(make_app(MINIWIKI, SESSIONS, **SMALL)) as (url, _):
        yield url


@pytest.fixture(scope="module")
def lake():
    with serving(make_app("AgentR1/FrozenLake-v0")) as (url, _):
        yield url


def client(url):
    return GenericEnvClient(base_url=url, message_timeout_s=600).sync()


def play(env, turns, **reset):
    """(text, reward, done) at the start and after each turn."""
    said = [env.reset(**reset)]
    for turn in turns:
        said.append(env.step({"text": turn}))
        if said[-1].done:
            break
    assert all(set(result.observation) == {"text"} for result in said)
    return [(result.observation["text"], result.reward, result.done) for result in said]


def play_plainly(turns, seed, noise_seed=None, id=MINIWIKI, **kwargs):
    """What ``gymnasium.make`` gives to the same turns, its instructions put before the first observation."""
    env = gymnasium.make(id, **kwargs).unwrapped
    observation, info = env.reset(seed=seed, options={} if noise_seed is None else {"noise_seed": noise_seed})
    said = [(f"{info['instructions']}\n\n{observation}", None, False)]
    for turn in turns:
        observation, reward, terminated, truncated, _ = env.step(turn)
        said.append((observation, reward, terminated or truncated))
        if said[-1][2]:
            break
    return said


def test_a_turn_ends_at_its_closing_tag_though_the_client_goes_on(wiki):
    with client(wiki) as env:
        said = play(env, [TURNS[0] + "<information>mine</information><answer>x</answer>", "<answer>no idea"], seed=2)
    assert said == play_plainly([TURNS[0], TURNS[2]], 2, **SMALL)


def test_metrics_are_beside_the_observation_and_nothing_of_them_is_in_its_text(wiki):
    with client(wiki) as env:
        results = [env.reset(seed=2), *(env.step({"text": turn}) for turn in TURNS)]
    notes = results[-1].metadata
    assert {"em", "support_recall", "score", "reward/answer", "truncated"} <= set(notes)
    names = {"reward_terms", "golds", "support_recall", "tool_faults", *(name for name in notes if "/" in name)}
    assert not [name for name in names for result in results if name in result.observation["text"]]
    env = gymnasium.make(MINIWIKI, **SMALL).unwrapped
    env.reset(seed=2)
    assert env.question.answer not in results[0].observation["text"]


def test_a_reset_takes_a_split_and_an_attempt(wiki, lake):
    with client(wiki) as env:
        held_out = play_plainly(TURNS, 3, split="validation", **SMALL)
        assert play(env, TURNS, seed=3, split="validation", episode_id="a") == held_out
        assert env.state()["episode_id"] == "a"
        assert play(env, TURNS, seed=3) == play_plainly(TURNS, 3, **SMALL) != held_out
    with client(lake) as env:
        walk = ["<answer>Down || Down || Right</answer>"]
        played = [play(env, walk, seed=3, attempt=i) for i in range(6)]
        assert played == [play_plainly(walk, 3, i, id="AgentR1/FrozenLake-v0") for i in range(6)]
        assert len({said[0][0] for said in played}) == 1 < len({said[1][0] for said in played})


@pytest.mark.parametrize(
    ("reset", "message"),
    [({"sed": 3}, "not sed"), ({"split": "tset"}, "split"), ({"seed": -1}, "[Ss]eed")],
)
def test_a_reset_that_cannot_be_done_says_why_and_the_session_goes_on(wiki, reset, message):
    with client(wiki) as env:
        with pytest.raises(RuntimeError, match=message):
            env.reset(**reset)
        assert play(env, TURNS, seed=3) == play_plainly(TURNS, 3, **SMALL)


def test_a_step_needs_an_episode(wiki):
    with client(wiki) as env:
        with pytest.raises(RuntimeError, match="reset first"):
            env.step({"text": "hm"})
        play(env, TURNS, seed=3)
        with pytest.raises(RuntimeError, match="reset"):
            env.step({"text": "hm"})


def test_the_example_plays(wiki, monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "plug" / "openenv_client.py"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for model in stand_in():
        model.script = TURNS
        command = ["--server", wiki, "--episodes", "2", "--model", "stub", "--api", model.url]
        monkeypatch.setattr(sys, "argv", [str(example), *command])
        runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    first, *played = play_plainly(TURNS, 0, split="validation", **SMALL)
    assert model.heard[0]["messages"] == [{"role": "user", "content": first[0]}]
    assert len(lines) == 2 and f"return {sum(reward for _, reward, _ in played):.2f}, score 0.00" in lines[0]


SMALL_WINDOW = '{"context": "window:1", "entities": 100, "questions": 20}'


def test_a_context_that_is_rewritten_is_not_served(monkeypatch, capsys):
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: pytest.fail("it is served"))
    monkeypatch.setattr(sys, "argv", ["agent_envs", "serve", "MiniWiki", "--env-kwargs", SMALL_WINDOW])
    with pytest.raises(SystemExit):
        agent_envs.__main__.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("leave context at 'append'")
