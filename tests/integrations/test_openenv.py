"""OpenEnv: its own server with our environments, played by its own client."""

import runpy
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import gymnasium
import pytest
from stub_model import stand_in

import agent_envs.__main__

pytest.importorskip("openenv.core.env_server", reason="pip install 'agent-r1-envs[openenv]'", exc_type=ImportError)
import uvicorn
from openenv import GenericEnvClient
from openenv_server import serve

from agent_envs.integrations.openenv import make_app
from agent_envs.tools.mcp import mount

pytestmark = pytest.mark.plug
MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}
TURNS = ["<search>a town</search>", "hm", "<answer>no idea</answer>"]
SESSIONS = 4


@pytest.fixture(scope="module")
def wiki():
    play_plainly(TURNS, 0, **SMALL)  # compiles the search, so that no client waits for it
    yield from serve(make_app(MINIWIKI, SESSIONS, **SMALL))


@pytest.fixture(scope="module")
def lake():
    yield from serve(make_app("AgentR1/FrozenLake-v0"))


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


def sampled_turns(id, seed, count=12, **kwargs):
    space = gymnasium.make(id, **kwargs).action_space
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def test_the_client_sees_and_earns_what_the_environment_gives(wiki, lake):
    with client(wiki) as env:
        assert play(env, TURNS, seed=3) == play_plainly(TURNS, 3, **SMALL)
        for seed in range(3):
            turns = sampled_turns(MINIWIKI, seed, **SMALL)
            assert play(env, turns, seed=seed) == play_plainly(turns, seed, **SMALL)
        assert play(env, ["hm"] * 3, seed=1)[-1][2]  # truncated
        assert env.state()["step_count"] == 3
    with client(lake) as env:
        turns = sampled_turns("AgentR1/FrozenLake-v0", 5)
        assert play(env, turns, seed=5) == play_plainly(turns, 5, id="AgentR1/FrozenLake-v0")


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


def test_sessions_play_at_once_each_its_own_episode(wiki):
    def one(seed):
        with client(wiki) as env:
            return [play(env, TURNS, seed=seed + 10 * i) for i in range(3)]

    with ThreadPoolExecutor(SESSIONS) as pool:
        played = list(pool.map(one, range(SESSIONS)))
    assert played == [[play_plainly(TURNS, seed + 10 * i, **SMALL) for i in range(3)] for seed in range(SESSIONS)]


def test_sessions_do_not_mix_and_one_too_many_is_refused(wiki):
    envs = [client(wiki).__enter__() for _ in range(SESSIONS)]
    expected = [play_plainly(TURNS, seed, **SMALL) for seed in range(SESSIONS)]
    said = [[env.reset(seed=seed)] for seed, env in enumerate(envs)]
    for turn in TURNS:
        for env, own in zip(envs, said, strict=True):
            own.append(env.step({"text": turn}))
    assert [[(r.observation["text"], r.reward, r.done) for r in own] for own in said] == expected
    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"), client(wiki) as env:
        env.reset(seed=0)
    for env in envs:
        env.close()


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


@pytest.mark.parametrize(
    ("action", "turn"),
    [({"text": 7}, "7"), ({"q": "x"}, '{"q": "x"}'), ({"text": "a", "b": 1}, '{"text": "a", "b": 1}')],
)
def test_a_turn_that_is_json_is_a_turn(wiki, action, turn):
    with client(wiki) as env:
        env.reset(seed=3)
        result = env.step(action)
    assert (result.observation["text"], result.reward, result.done) == play_plainly([turn], 3, **SMALL)[1]


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


def test_tools_of_mcp_servers_say_that_they_need_another_mcp():
    if int(metadata.version("mcp").split(".")[0]) >= 2:
        pytest.skip("mcp>=2 is installed")
    with pytest.raises(ImportError, match=r"mcp>=2.*another virtual environment"):
        mount(["no-such-server"])


@pytest.fixture
def run(monkeypatch):
    """Runs the command line; returns what would have been served."""
    served = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.update(app=app, **options))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["agent_envs", "serve", *arguments])
        agent_envs.__main__.main()
        return served

    return run


def test_the_command_serves_it(run):
    served = run("MiniWiki", "--openenv", "--port", "8123", "--kwargs", '{"entities": 100, "questions": 20}')
    assert served["port"] == 8123 and served["host"] == "127.0.0.1"
    assert {"/ws", "/schema"} <= {getattr(route, "path", "") for route in served["app"].routes}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Nope", "--openenv"], "Nope"),
        (["MiniWiki", "--openenv", "--kwargs", '{"nope": 1}'], "nope"),
        (
            ["MiniWiki", "--openenv", "--kwargs", '{"context": "window:1", "entities": 100, "questions": 20}'],
            "leave context at 'append'",
        ),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line(run, arguments, message):
    with pytest.raises(SystemExit, match=message) as stopped:
        run(*arguments)
    assert "\n" not in str(stopped.value)
