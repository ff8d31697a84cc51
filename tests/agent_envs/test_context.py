"""What the agent sees of its past, and the budgets of an episode."""

import json
import pickle

import pytest

from agent_envs.context import make_context
from agent_envs.rewards import Reward
from agent_envs.tool_env import ToolEnv
from agent_envs.types import ToolCall, Turn, TurnOutcome


def echo(text: str) -> str:
    """says it again."""
    return text.upper()


class Chat(ToolEnv):
    """Echoes, so that every turn can be told apart."""

    REWARD = Reward()

    def __init__(self, **common):
        super().__init__((echo,), instructions="Talk.", **{"max_turns": 6, **common})

    def begin(self, options):
        return "Hello", {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome()


def play(env, turns):
    env.reset(seed=0)
    return [env.step(f"<echo>{turn}</echo>") for turn in turns]


def said(info):
    """The context of a turn, with each echo as its letter and each result in capitals."""
    shorten = {"user": "<information>{}</information>", "assistant": "<echo>{}</echo>"}
    texts = [(shorten[message["role"]], message["content"]) for message in info["context"]]
    return [next((x for x in "abcdeABCDE" if form.format(x) == text), text) for form, text in texts]


def test_a_window_keeps_the_task_and_the_last_turns():
    infos = [info for *_, info in play(Chat(context="window:2"), "abcde")]
    assert ["context" in info for info in infos] == [False, False, True, True, True]
    assert said(infos[3]) == ["Hello", "c", "C", "d", "D"]
    assert [message["role"] for message in infos[3]["context"]] == ["user", *["assistant", "user"] * 2]


def test_a_summary_has_a_line_for_each_turn_left_out():
    infos = [info for *_, info in play(Chat(context="summary:1"), "abc")]
    lines = "1. ‹echo›a‹/echo› -> ‹information›A‹/information›\n2. ‹echo›b‹/echo› -> ‹information›B‹/information›"
    assert said(infos[2]) == [f"Hello\n\nYour turns before, in short:\n{lines}", "c", "C"]
    long = play(Chat(context="summary:1"), ["x " * 5000, "b"])[1][4]
    assert len(long["context"][0]["content"]) < 600


@pytest.mark.parametrize("format", ["tags", "hermes", "react", "native"])
def test_a_summary_leaves_thoughts_out(format):
    env = Chat(context="summary:1", format=format)
    env.reset(seed=0)
    for text in ("abc", "b"):
        info = env.step(env.format.write(Turn((ToolCall("echo", {"text": text}),), thought="so, " * 200 + "so")))[4]
    line = info["context"][0]["content"].splitlines()[-1]
    assert "echo" in line and "abc" in line and "ABC" in line and "so" not in line


def test_a_summary_of_a_native_turn_without_a_call_is_its_text():
    env = Chat(context="summary:1", format="native")
    env.reset(seed=0)
    for said in ({"reasoning_content": "so, so", "content": "Hm."}, {"content": "b"}):
        info = env.step(json.dumps({"role": "assistant", **said}))[4]
    assert info["context"][0]["content"].splitlines()[-1].startswith("1. Hm. -> ")


@pytest.mark.parametrize("text", ["Go on.", "5", "[]", '[{"role": "user"}]', "[" * 100_000])
def test_a_rewriting_may_add_plain_text_in_the_format_native(text):
    env = Chat(format="native", context=lambda messages: [messages[0], {"role": "user", "content": text}])
    env.reset(seed=0)
    assert env.step("Hm.")[4]["context"][1:] == [{"role": "user", "content": text}]


def only_the_task(messages):
    return messages[:1]


def test_a_rewriting_of_ones_own_by_function_or_by_name():
    for spec in (only_the_task, f"{__name__}:only_the_task"):
        env = Chat(context=spec)
        assert said(play(env, "a")[0][4]) == ["Hello"]
        assert pickle.loads(pickle.dumps(env)).step("<echo>b</echo>") == env.step("<echo>b</echo>")


def test_bad_contexts_and_budgets_are_refused():
    for spec in ("window", "window:0", "window:x", "summary:-1", "nowhere:f", "math:nothing", "math:pi", ""):
        with pytest.raises(ValueError, match="context"):
            make_context(spec)
    for budget in ("max_turns", "max_calls", "max_total_calls", "max_tokens"):
        with pytest.raises(ValueError, match=f"{budget} must be an integer of at least 1"):
            Chat(**{budget: 0})


def test_the_call_budget_refuses_the_turn_that_would_exceed_it():
    env = Chat(max_total_calls=3)
    env.reset(seed=0)
    env.step("<echo>a</echo><echo>b</echo>")
    observation, *_, info = env.step("<echo>c</echo><echo>d</echo>")
    assert "Of 3 calls 1 are left" in observation and not info["valid"] and info["calls"] == 2
    assert env.step("<echo>c</echo>")[4]["calls"] == 3
    assert env.step("<answer>done</answer>")[2]


def test_the_token_budget_counts_what_was_read_and_written():
    env = Chat(max_tokens=40)
    with pytest.raises(ValueError, match="max_tokens needs something that counts"):
        env.reset(seed=0)
    env.count_tokens = len
    outcomes = play(env, "a")
    assert outcomes[0][4]["tokens"] == len("Hello" + "<echo>a</echo>" + "<information>A</information>") == 47
    assert outcomes[0][2:4] == (False, True)  # truncated: over the budget
    env = Chat(max_tokens=47)
    env.count_tokens = len
    assert play(env, "a")[0][2:4] == (False, False)
    assert "goes beyond the 47 tokens" in env.step("x")[0]  # none is left
    play(env, "a")
    *_, truncated, info = env.step("<echo>b", cut=True)  # by the sampler's limit: no mistake
    assert truncated and info["cut"] and info["reward_terms"].get("invalid", 0.0) == 0


def test_a_tokenizer_from_a_folder_counts_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    env = Chat(max_tokens=1000, tokenizer=str(tmp_path))
    assert env.count_tokens("three words \ud800") == 3
    assert pickle.loads(pickle.dumps(env)).count_tokens("two words") == 2
    with pytest.raises(ValueError, match="tokenizer must be a folder"):
        Chat(max_tokens=10, tokenizer=str(tmp_path / "nothing" / "here"))
