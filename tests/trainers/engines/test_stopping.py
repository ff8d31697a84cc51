import pytest

from agent_envs.stopping import StopChecker

STOP = ("</search>", "</answer>")


@pytest.mark.parametrize("kind", ["bytes", "bpe", "words"])
@pytest.mark.parametrize("text", ["<search>the town</search>", "<think>so ☃</think><answer>the</answer>"])
def test_a_turn_ends_with_the_token_that_completes_a_stop_string(make_policy, kind, text):
    policy = make_policy(kind)
    ends_turn, ids = StopChecker(policy, STOP), policy.encode(text + " more text")
    first = next(n for n in range(1, len(ids) + 1) if ends_turn(ids[:n]))
    said = policy.tokenizer.decode(ids[:first]).replace(" ", "")
    assert said.startswith(text.replace(" ", ""))
    before = policy.tokenizer.decode(ids[: first - 1]).replace(" ", "")
    assert not before.startswith(text.replace(" ", ""))


def test_a_stop_string_of_long_characters(make_policy):
    """Of four tokens each, where tokens are bytes."""
    policy, stop = make_policy("bytes"), "‹/" + "🙂" * 6 + ">"
    ends_turn, ids = StopChecker(policy, (stop,)), policy.encode("so " + stop)
    assert [n for n in range(1, len(ids) + 1) if ends_turn(ids[:n])] == [len(ids)]


def test_ends_of_the_policy_end_turns(make_policy):
    policy = make_policy("bytes")
    for stop in ((), STOP):
        ends_turn = StopChecker(policy, stop)
        assert all(ends_turn([*policy.encode("hi"), end]) for end in policy.end_ids)
        assert not ends_turn(policy.encode("hi>"))
