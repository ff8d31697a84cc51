"""The contract of `agent_envs.integrations.Episode`, which every adapter stands on."""

import asyncio
import time

import gymnasium
import pytest

from agent_envs.formats import FORMATS
from agent_envs.integrations import Episode, step_all, take_message
from agent_envs.integrations import episode as episodes
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, Turn, TurnOutcome

MINIWIKI, SMALL = "AgentR1/MiniWiki-Easy-v0", {"entities": 100, "questions": 20, "max_turns": 3}

TASKS = [(MINIWIKI, SMALL), ("AgentR1/FrozenLake-v0", {}), ("AgentR1/Mixture-v0", {})]


def sampled_turns(id, kwargs, seed, count=12):
    """Turns of which some are well-formed."""
    space = gymnasium.make(id, **kwargs).action_space
    space.seed(seed)
    return [space.sample() for _ in range(count)]


@pytest.mark.parametrize(("id", "kwargs"), TASKS)
def test_many_at_once_are_what_each_is_alone(id, kwargs):
    turns = [sampled_turns(id, kwargs, seed, 1)[0] for seed in range(3)]
    together, alone = ([Episode(id, **kwargs) for _ in turns] for _ in range(2))
    for seed in range(3):
        assert together[seed].start(seed) == alone[seed].start(seed)
    assert step_all(together, turns) == [episode.step(turn) for episode, turn in zip(alone, turns, strict=True)]
    assert [episode.rewards for episode in together] == [episode.rewards for episode in alone]


def test_a_row_has_its_own_split():
    """Whatever split the arguments of the adapter name."""
    for row, split in (("train", "train"), ("", "validation")):
        episode = episodes.make_in_split(MINIWIKI, row, **SMALL, split="validation")
        assert episode.env.split == split


def test_attempts_slip_on_the_same_lake_each_in_its_own_way():
    episode, walk = Episode("AgentR1/FrozenLake-v0"), ["<answer>Down || Down || Right</answer>"]
    starts, ends = set(), set()
    for attempt in range(8):
        starts.add(str(episode.start(3, attempt=attempt)))
        ends.add(episode.step(walk[0]).text)
        again = Episode("AgentR1/FrozenLake-v0")
        again.start(3, attempt=attempt)
        assert again.step(walk[0]).text in ends
    assert len(starts) == 1 and len(ends) > 1
    with pytest.raises(ValueError, match="attempt must be an integer, got 'x'"):
        Episode(MINIWIKI, **SMALL).start(3, attempt="x")


@pytest.mark.parametrize("native", [False, True])
def test_no_metric_and_no_gold_is_in_what_the_agent_sees(native):
    episode = Episode(MINIWIKI, native=native, **SMALL)
    seen = [m["content"] for m in episode.start(2)]
    texts = "<search>no such thing</search>", "hm", "<nope>x</nope>"
    calls = [("search", {"query": "no such thing"})], [], [("nope", {})]
    replies = [episode.call(turn) for turn in calls] if native else [episode.step(turn) for turn in texts]
    seen += [text for reply in replies for text in (reply.text, *reply.results)]
    names = {name for reply in replies for name in reply.metrics}
    assert {"support_recall", "em", "reward/answer", "score"} <= names
    hidden = {"reward_terms", "golds", "support_recall", "score", "tool_faults", *(n for n in names if "/" in n)}
    assert not [name for name in hidden for text in seen if name in text]
    assert all(episode.env.question.answer not in text for text in seen[:2])


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "ragen"])
def test_results_are_bare_in_every_format(format):
    episode = Episode(MINIWIKI, format=format, **SMALL)
    episode.start(2)
    write = episode.env.format.write
    title = episode.env.question.supporting_titles[0]
    reply = episode.step(write(Turn(calls=(ToolCall("search", {"query": title}), ToolCall("search", {"query": "x"})))))
    assert len(reply.results) == 2 and title in reply.results[0] and reply.results[0] != reply.text
    for tag in ("<information>", "<tool_response>", "Observation:", '"role"', "<|"):
        assert tag not in "".join(reply.results)
    (wrong,) = episode.step("").results
    assert wrong and "<information>" not in wrong.split("Write")[0] and "Invalid turn" not in wrong
    assert episode.step(write(Turn(answer="no idea"))).results == ()


def test_calls_earn_what_the_same_turns_earn_in_text():
    text, native = Episode(MINIWIKI, **SMALL), Episode(MINIWIKI, native=True, **SMALL)
    asked = [episode.start(4)[1] for episode in (text, native)]
    assert asked[0] == asked[1]
    title, answer = text.env.question.supporting_titles[0], text.env.question.answer
    paid = [text.step(t).reward for t in (f"<search>{title}</search>", f"<answer>{answer}</answer>")]
    replies = [native.call([("search", {"query": title})]), native.call([("answer", {"text": answer})])]
    assert [reply.reward for reply in replies] == paid and sum(paid) > 1
    assert replies[1].terminated and replies[1].metrics["score"] == 1


UNMADE = [
    *([], [("nope", {"query": "x"})], [("search", {})], [("search", {"query": 3})]),
    *([("search", {"query": float("nan")})], [("answer", {})], [("answer", {"text": " "})], [("answer", {"text": 5})]),
    [("answer", {"text": "x"}), ("search", {"query": "x"})],
]


@pytest.mark.parametrize("calls", UNMADE)
def test_calls_that_cannot_be_made_cost_what_an_invalid_turn_costs(calls):
    text = Episode(MINIWIKI, rewards={"invalid": -0.5}, **SMALL)
    native = Episode(MINIWIKI, native=True, rewards={"invalid": -0.5}, **SMALL)
    text.start(1), native.start(1)
    invalid, reply = text.step("hm"), native.call(calls)
    assert reply.reward == invalid.reward == -0.5 and not reply.done and any(reply.results)


def test_metrics_of_the_episode_are_the_last_and_sums_of_rewards_and_faults(monkeypatch):
    episode = Episode(MINIWIKI, rewards={"invalid": -0.25}, **SMALL)
    episode.start(2)
    monkeypatch.setattr(episode.env.tools["search"], "searcher", None)  # every search breaks
    search = "<search>a town</search>"
    for turns in ([search, search, "hm"], ["hm", search, "hm"]):
        episode.start(2)
        assert episode.metrics == {}
        replies = [episode.step(turn) for turn in turns]
        summed = {"tool_faults": float(turns.count(search)), "reward/invalid": -0.25 * turns.count("hm")}
        last = {name: value for reply in replies for name, value in reply.metrics.items()}
        assert episode.metrics == last | summed and last["tool_faults"] == 0 and last["turns"] == 3


def test_a_native_game_has_no_answer():
    episode = Episode("AgentR1/Sokoban-v0", native=True)
    assert "answer" not in episode.start(3)[0]["content"]
    reply = episode.call([("move", {"actions": ["Up", "Left"]})])
    assert reply.results[0].startswith("#") and reply.metrics["moves"] == 2
    assert episode.call([("move", {"actions": ["Jump"]})]).results[0].endswith("Actions left: 8")  # shown again


def test_what_native_calls_cannot_follow_is_refused():
    with pytest.raises(ValueError, match="leave out format"):
        Episode(MINIWIKI, native=True, format="tags")
    with pytest.raises(ValueError, match="other tools in each episode"):
        Episode("AgentR1/Mixture-v0", native=True)
    with pytest.raises(ValueError, match="made with native=True"):
        Episode(MINIWIKI, **SMALL).call([])


@pytest.mark.parametrize("broken", [3, 1000])
def test_what_an_outage_made_of_an_episode_is_played_again_for_a_while(monkeypatch, capsys, broken):
    """An episode of one search and an answer, whose searcher breaks the first ``broken`` times. Pauses pass at once, and take
    the minutes that they would."""
    episode, played, slept, begun = Episode(MINIWIKI, **SMALL), [], [], time.monotonic()
    searcher = episode.env.tools["search"].searcher

    async def sleep(seconds):
        slept.append(seconds)

    async def play():
        monkeypatch.setattr(episode.env.tools["search"], "searcher", None if len(played) < broken else searcher)
        episode.start(2)
        played.append([episode.step(turn) for turn in ("<search>a town</search>", "<answer>x</answer>")])
        return played[-1]

    monkeypatch.setattr(episodes.asyncio, "sleep", sleep)
    monkeypatch.setattr(episodes.time, "monotonic", lambda: begun + sum(slept))
    if broken == 3:
        last = asyncio.run(episodes.retry_on_tool_failure(play, episode))
        assert last is played[3] and not episode.metrics["tool_faults"] and slept == [1, 2, 4]
        assert capsys.readouterr().err.count("a tool broke in an episode: it is run again") == 3
        return
    with pytest.raises(RuntimeError, match="for 10 minutes"):
        asyncio.run(episodes.retry_on_tool_failure(play, episode))
    assert 600 <= sum(slept) < 700 and len(played) < 20


def test_a_library_that_cannot_leave_an_episode_out_gets_an_error(monkeypatch):
    episode = Episode(MINIWIKI, **SMALL)
    episode.start(2)
    episodes.raise_on_tool_failure(episode.step("hm"), "It")
    monkeypatch.setattr(episode.env.tools["search"], "searcher", None)
    with pytest.raises(RuntimeError, match=r"a tool broke, .*It would learn from it"):
        episodes.raise_on_tool_failure(episode.step("<search>a town</search>"), "It")


def test_the_score_comes_when_the_episode_is_over():

    class Scored(ToolEnv):
        PRIMARY_METRIC = "score"

        def begin(self, options):
            return "Well?", {}

        def evaluate_turn(self, turn, results, done):
            return TurnOutcome({"score": 0.5})

    if "Mine/Scored-v0" not in gymnasium.registry:
        gymnasium.register("Mine/Scored-v0", entry_point=Scored)
    episode = Episode("Mine/Scored-v0", max_turns=2)
    episode.start(0)
    assert "score" not in episode.step("hm").metrics and "score" not in episode.metrics
    assert episode.step("hm").metrics["score"] == episode.metrics["score"] == 0.5


def test_the_turns_of_a_mixture_are_those_of_its_longest_task():
    episode = Episode("AgentR1/Mixture-v0", tasks={"AgentR1/Bandit-v0": 1, "AgentR1/Sokoban-v0": 1})
    longest = {task.max_turns for task in episode.env.tasks.values()}
    for seed in range(4):
        episode.start(seed)
        assert episode.max_turns == max(longest) > min(longest)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("native", [False, True])
def test_a_message_that_is_cut_inside_its_thought_is_no_malformed_turn(name, native):
    episode = Episode(MINIWIKI, native=native, **SMALL)
    episode.start(0)
    reply, _ = take_message(episode, {"role": "assistant", "content": None, name: "Let me see"}, cut=True)
    assert reply.metrics["cut"] and reply.reward == 0
