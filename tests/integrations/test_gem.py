"""`agent_envs.integrations.gem` against GEM."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.plug
gem = pytest.importorskip("gem", reason="pip install gem-llm", exc_type=ImportError)

from agent_envs.integrations import gem as plug  # noqa: E402

MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}
EXAMPLE = Path(__file__).parents[2] / "examples" / "plug" / "in_gem.py"


@pytest.mark.parametrize("async_mode", [False, True])
def test_a_vector_is_its_environments_one_by_one(async_mode):
    plug.register(MINIWIKI, **SMALL)
    plug.register(MINIWIKI, **SMALL)  # twice is no mistake
    vector = gem.make_vec([MINIWIKI] * 3, seed=5, async_mode=async_mode)
    alone = [gem.make(MINIWIKI, seed=5 + i) for i in range(3)]
    observations, _ = vector.reset()
    assert list(observations) == [env.reset()[0] for env in alone] and len(set(observations)) > 1
    for turn in ("<search>a town</search>", "nothing", "<answer>x</answer>", "<search>a town</search>"):
        observations, rewards, terminated, truncated, _ = vector.step([turn] * 3)
        for i, env in enumerate(alone):
            observation, reward, ended, cut, _ = env.step(turn)
            assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
            assert observations[i] == (env.reset()[0] if ended or cut else observation)
    assert list(vector.reset(seed=9)[0]) == [env.reset(seed=9 + i)[0] for i, env in enumerate(alone)]


def test_gems_wrappers_take_it():
    plug.register(MINIWIKI, **SMALL)
    from gem.wrappers.observation_wrapper import ObservationWrapper

    env = ObservationWrapper(gem.make(MINIWIKI), include_action=True, include_chat_template=False)
    first, _ = env.reset(seed=0)
    both = env.step("<search>a town</search>")[0]
    assert first.strip() in both and "<search>a town</search>" in both and "<information>" in both
    assert env.unwrapped.spawn(split="validation").reset(seed=0)[0] != first
    with pytest.raises(ValueError, match="with one seed"):
        env.unwrapped.spawn(same_state=True)


def test_the_example_runs():
    run = subprocess.run([sys.executable, EXAMPLE, "--steps", "6"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "24 turns" in run.stdout and "Answer the question." in run.stdout
