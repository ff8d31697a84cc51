"""What Gymnasium has for any environment, with ours: wrappers, its own vectors, loops that know no info."""

import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers import TransformObservation

from agent_envs.integrations import Episode

ID, TURNS = "AgentR1/MiniWiki-Easy-v0", ["<search>a town</search>", "nothing", "<answer>x</answer>"]


def play(envs, seed=0):
    """What a vector says to some turns; its environments are all at the same one."""
    said = [envs.reset(seed=seed)[0]]
    for turn in TURNS:
        observations, rewards, terminated, truncated, _ = envs.step((turn,) * envs.num_envs)
        said.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist()))
    envs.close()
    return said


def test_gymnasiums_own_vectors_say_what_ours_says(small):
    expected, make = play(gymnasium.make_vec(ID, num_envs=2, **small)), lambda: gymnasium.make(ID, **small)
    assert play(AsyncVectorEnv([make] * 2, shared_memory=False)) == expected
    unshared = {"shared_memory": False}
    made = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="async", vector_kwargs=unshared, **small)
    assert play(made) == expected
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([make] * 2)


@pytest.mark.parametrize("id", [ID, "AgentR1/Sokoban-v0", "AgentR1/Mixture-v0"])
def test_a_loop_that_knows_no_info_reads_the_instructions(id):
    told, plain = gymnasium.make(id, instructions_in_observation=True), gymnasium.make(id)
    for seed in range(3):
        (observation, rest), (question, info) = told.reset(seed=seed), plain.reset(seed=seed)
        assert observation == f"{info['instructions']}\n\n{question}" and len(info["instructions"]) > 80
        assert rest["instructions"] == "" and told.unwrapped.first_observation == question  # what scripted agents read
        turn = plain.unwrapped.action_space.phrases[0]
        assert told.step(turn)[:4] == plain.step(turn)[:4]
    assert isinstance(TransformObservation(told, str.upper, told.observation_space).reset()[0], str)


def test_adapters_that_give_the_instructions_themselves_refuse_them_in_observations(small):
    with pytest.raises(ValueError, match="leave out instructions_in_observation"):
        Episode(ID, instructions_in_observation=True, **small)
