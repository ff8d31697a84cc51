"""`TokenEpisode`, which the adapters for OpenRLHF, verl and TorchRL stand on: its ids are those of our rollout."""

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
