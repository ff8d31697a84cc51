"""What Gymnasium has for any environment, with ours: wrappers, its own vectors, loops that know no info."""

import gymnasium
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TransformObservation, vector

import agent_envs
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
    assert play(SyncVectorEnv([make] * 2)) == expected
    assert play(AsyncVectorEnv([make] * 2, shared_memory=False)) == expected
    assert play(gymnasium.make_vec(ID, num_envs=2, vectorization_mode="sync", **small)) == expected
    unshared = {"shared_memory": False}
    assert (
        play(gymnasium.make_vec(ID, num_envs=2, vectorization_mode="async", vector_kwargs=unshared, **small))
        == expected
    )
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([make] * 2)


def test_wrappers_and_vector_kwargs_go_with_gymnasiums_vectors(small):
    envs = gymnasium.make_vec(
        ID, num_envs=2, vectorization_mode="sync", wrappers=[RecordEpisodeStatistics],
        vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}, **small,
    )  # fmt: skip
    envs.reset(seed=0)
    *_, infos = [envs.step((turn,) * 2) for turn in TURNS][-1]
    assert infos["episode"]["l"].tolist() == [3, 3]
    for unknown in ({"wrappers": [RecordEpisodeStatistics]}, {"vector_kwargs": {"copy": False}}):
        with pytest.raises(gymnasium.error.Error, match=r"vector_entry_point|only through kwargs"):
            gymnasium.make_vec(ID, num_envs=2, **unknown, **small)


def test_statistics_are_those_of_the_episode(small):
    env = RecordEpisodeStatistics(gymnasium.make(ID, **small))
    env.reset(seed=0)
    steps = [env.step(turn) for turn in TURNS]
    episode = steps[-1][4]["episode"]
    assert episode["l"] == 3 and episode["r"] == pytest.approx(sum(step[1] for step in steps))
    envs = vector.RecordEpisodeStatistics(gymnasium.make_vec(ID, num_envs=2, autoreset_mode="NEXT_STEP", **small))
    envs.reset(seed=[0, 0])
    *_, infos = [envs.step((turn,) * 2) for turn in TURNS][-1]
    assert infos["episode"]["r"].tolist() == pytest.approx([episode["r"]] * 2)


def test_the_limit_of_gymnasium_has_a_name_of_ours(small):
    with pytest.raises(ValueError, match="max_turns"):
        gymnasium.make_vec(ID, num_envs=2, max_episode_steps=2, **small)


@pytest.mark.parametrize("id", [ID, "AgentR1/HotpotQA-v0", "AgentR1/Sokoban-v0", "AgentR1/Mixture-v0"])
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_an_unknown_argument_is_refused_in_pythons_words(id, make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'frameskip'"):
        make(id, frameskip=1)


@pytest.mark.parametrize("id", [ID, "AgentR1/Sokoban-v0", "AgentR1/Mixture-v0"])
def test_a_loop_that_knows_no_info_reads_the_instructions(id):
    told, plain = gymnasium.make(id, instructions_in_observation=True), gymnasium.make(id)
    for seed in range(3):
        (observation, _), (question, info) = told.reset(seed=seed), plain.reset(seed=seed)
        assert observation == f"{info['instructions']}\n\n{question}" and len(info["instructions"]) > 80
        assert told.unwrapped.first_observation == question  # what the scripted agents read
        turn = plain.unwrapped.action_space.phrases[0]
        assert told.step(turn)[:4] == plain.step(turn)[:4]


def test_instructions_in_observations_are_said_once(small):
    told = gymnasium.make(ID, instructions_in_observation=True, **small)
    assert told.reset(seed=0)[1]["instructions"] == ""
    envs = gymnasium.make_vec(ID, num_envs=2, instructions_in_observation=True, **small)
    assert envs.reset(seed=[0, 1])[0][0] == told.reset(seed=0)[0]
    assert isinstance(TransformObservation(told, str.upper, told.observation_space).reset()[0], str)
    with pytest.raises(ValueError, match="leave out instructions_in_observation"):
        Episode(ID, instructions_in_observation=True, **small)


def test_a_rewritten_context_keeps_them(small):
    told = gymnasium.make(ID, instructions_in_observation=True, context="window:1", **small)
    observation, _ = told.reset(seed=0)
    told.step(TURNS[0])
    assert told.step(TURNS[1])[4]["context"][0] == {"role": "user", "content": observation}


def test_the_system_prompt_counts_no_tokens(small):
    envs = [
        gymnasium.make(ID, instructions_in_observation=told, max_tokens=10_000, **small).unwrapped for told in (0, 1)
    ]
    for env in envs:
        env.count_tokens = len
        env.reset(seed=0)
    assert envs[0].tokens == envs[1].tokens == len(envs[0].first_observation)


def test_a_hosted_environment_says_its_instructions_too():
    class Plain:
        def reset(self, seed):
            return "A number?", {}

    env = agent_envs.host(Plain, "Guess.", instructions_in_observation=True)
    assert env.reset(seed=0)[0] == "Guess.\n\nA number?"
