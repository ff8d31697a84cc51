"""`TokenEpisode`, which the adapters for OpenRLHF, verl and TorchRL stand on: its ids are those of our rollout."""

import asyncio

import pytest
from plug_setup import MINIWIKI, SMALL, make_policy

from agent_envs.integrations import Episode
from agent_envs.integrations.token_episode import TokenEpisode

SEED = 11


def test_without_room_for_another_turn_it_ends():
    policy = make_policy("bytes")
    turn = policy.encode("<search>a town</search>")
    play = TokenEpisode(Episode(MINIWIKI, **SMALL), policy.tokenizer)
    play.start(SEED)
    assert play.take(turn, room=len(turn) + 20).truncated
    assert play.ids == turn and play.mask == [1] * len(turn) and play.logprobs == [0.0] * len(turn)
    play.start(SEED)
    reply = play.take(turn + policy.encode(" and more"), [-1.0] * (len(turn) + 9), room=len(turn) + 20_000)
    assert play.ids[: len(turn)] == turn and play.logprobs[: len(turn)] == [-1.0] * len(turn)
    assert reply.text.startswith("<information>") and len(play.ids) > len(turn) == sum(play.mask)


def test_shaping_is_taken_back_where_there_is_no_room_for_another_turn():
    policy = make_policy("bytes")
    play = TokenEpisode(Episode(MINIWIKI, **SMALL), policy.tokenizer)
    play.start(SEED)
    turn = policy.encode(f"<search>{play.episode.env.question.supporting_titles[0]}</search>")
    assert play.take(turn, room=10_000).metrics["reward/progress"] > 0
    reply = play.take(policy.encode("<search>nothing of that name</search>"), room=len(play.ids) + 60)
    assert reply.truncated and play.done
    assert play.episode.metrics["reward/progress"] == pytest.approx(0)


def test_a_turn_that_a_stop_string_in_a_thought_interrupts_is_sampled_on():
    """Servers look for stop strings in thoughts too, where none ends a turn."""
    policy = make_policy("bytes")
    play = TokenEpisode(Episode(MINIWIKI, **SMALL), policy.tokenizer)
    play.start(SEED)
    texts = "<think>I could write <search>x</search>", " or answer.</think><answer>y</answer>"
    asked = []

    async def generate(ids, most):
        asked.append((ids, most))
        turn = policy.encode(texts[len(asked) - 1])
        return turn, [-1.0] * len(turn)

    turn, logprobs = asyncio.run(play.sample(generate, 500))
    assert turn == policy.encode("".join(texts)) and logprobs == [-1.0] * len(turn)
    first = policy.encode(texts[0])
    assert asked == [(play.prompt, 500), (play.prompt + first, 500 - len(first))]
    asked.clear()
    assert asyncio.run(play.sample(generate, 10))[0] == first[:10] and len(asked) == 1
    asked.clear()
    texts = ("no stop string", "")  # the server ended it for another reason
    assert asyncio.run(play.sample(generate, 500))[0] == policy.encode(texts[0]) and len(asked) == 1
