"""One contract over all adapters: in every library an episode says, samples and pays what it does in ours."""

import gymnasium
import pytest
from adapters import TEXT, TOKENS
from plug_setup import LAKE, MINIWIKI, SMALL, make_policy, ours

from agent_envs.integrations.episode import draw_questions
from trainers.trajectory import to_rows

TASKS = [
    (MINIWIKI, SMALL),
    (MINIWIKI, {**SMALL, "split": "validation"}),
    *((f"AgentR1/{name}-v0", {}) for name in ("Sokoban", "FrozenLake", "Calculator", "Mixture", "Bandit")),
]


def mark(name):
    return pytest.param(name, marks=() if name in ("Episode", "TokenEpisode", "trl") else pytest.mark.plug)


@pytest.mark.parametrize(("id", "kwargs"), TASKS)
@pytest.mark.parametrize("library", [mark(name) for name in TEXT])
def test_it_says_and_pays_what_gymnasium_does(library, id, kwargs):
    start, step = TEXT[library](id, kwargs)
    plain = gymnasium.make(id, **kwargs).unwrapped
    for seed, _, messages in draw_questions(id, 3, 0, **kwargs):
        question, info = plain.reset(seed=seed)
        assert start(seed, messages) == f"{info['instructions']}\n\n{question}"
        plain.action_space.seed(seed)
        done = False
        while not done:
            turn = plain.action_space.sample()
            observation, reward, terminated, truncated, _ = plain.step(turn)
            done = terminated or truncated
            assert step(turn) == ("" if done and library == "skyrl" else observation, reward, done)


@pytest.mark.parametrize("n", [0, -3])
def test_a_dataset_has_questions(n):
    with pytest.raises(ValueError, match=f"a dataset needs at least 1 question, got {n}"):
        next(draw_questions(MINIWIKI, n, 0))


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [({"context": "window:1"}, "leave context at 'append'"), ({"format": "native"}, "another format than native")],
)
@pytest.mark.parametrize("library", [mark("gem"), mark("skyrl")])
def test_text_that_is_rewritten_or_holds_calls_is_refused(library, kwargs, why):
    with pytest.raises(ValueError, match=why):
        start, _ = TEXT[library](MINIWIKI, {**SMALL, **kwargs})
        start(0, [])


@pytest.mark.parametrize("kind", ["bytes", "words"])
@pytest.mark.parametrize(("id", "kwargs"), [(MINIWIKI, SMALL), (LAKE, {})])
@pytest.mark.parametrize("library", [mark(name) for name in TOKENS])
def test_ids_masks_logprobs_and_returns_are_those_of_our_rollout(library, id, kwargs, kind):
    policy, adapter = make_policy(kind), TOKENS[library]()
    rows = adapter.dataset(id, 2, seed=5, **kwargs)
    episodes = ours(policy, id, kwargs, [adapter.seed_of(row) for row in rows], 3)
    rows = [row for row in rows for _ in range(3)]
    for episode, came in zip(episodes, adapter.run(policy, id, kwargs, rows, episodes), strict=True):
        (sequence,) = to_rows(episode.steps)
        ids, mask, logprobs, paid = came
        assert ids == sequence.ids and [bool(own) for own in mask] == sequence.mask
        assert logprobs == pytest.approx(sequence.logprobs) and paid == pytest.approx(episode.episode_return)


@pytest.mark.parametrize("library", [mark(name) for name in TOKENS])
def test_a_context_that_is_rewritten_is_refused(library):
    policy, adapter = make_policy("bytes"), TOKENS[library]()
    rows = adapter.dataset(MINIWIKI, 1, **SMALL)
    with pytest.raises(ValueError, match="leave context at 'append'"):
        list(adapter.run(policy, MINIWIKI, {**SMALL, "context": "window:1"}, rows, []))


@pytest.mark.parametrize("library", [mark(name) for name in ("trl", "openrlhf", "verl")])
def test_another_dataset_is_refused(library):
    policy, adapter = make_policy("bytes"), TOKENS[library]()
    (row,) = adapter.dataset(MINIWIKI, 1, **SMALL)
    with pytest.raises(ValueError, match="the same arguments"):
        list(adapter.run(policy, MINIWIKI, {**SMALL, "entities": 120}, [row], ours(policy, MINIWIKI, SMALL, [1], 1)))
    with pytest.raises(ValueError, match=rf"without a seed: train on agent_envs\.integrations\.{library}\.dataset"):
        list(adapter.run(policy, MINIWIKI, SMALL, [adapter.strip_seed(row)], ours(policy, MINIWIKI, SMALL, [1], 1)))
