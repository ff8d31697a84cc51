import contextlib
import random
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest

from agent_envs.data.question import Question
from agent_envs.formats import make_format
from agent_envs.tasks import qa_scripts as scripted
from agent_envs.tasks.mixture import MixtureEnv
from agent_envs.tasks.qa_data import QATask
from agent_envs.tools import SearchTool
from agent_envs.utils.baselines import run_baselines
from agent_envs.utils.scripts import roll_out, roll_out_many, sample_instances

WRITE = make_format("tags", [SearchTool(None)]).write


def asks(question):
    """What a script sees of an environment that asks this question."""
    return SimpleNamespace(question=question, first_observation=question.question)


@pytest.fixture(scope="module")
def envs():
    return gymnasium.make_vec("AgentR1/MiniWiki-Easy-v0", num_envs=50, entities=300, questions=400)


def turns_of(script, page="<information>[1] A: b.</information>"):
    texts = [WRITE(next(script))]
    with contextlib.suppress(StopIteration):
        while True:
            texts.append(WRITE(script.send(page)))
    return texts


@pytest.mark.filterwarnings("error")  # of actions after the end
def test_early_stopping_is_right_as_often_as_it_is_patient(envs):
    """EM = continue_probability ** (hops - 1); 400 tries have a standard error of 0.023."""
    episodes = roll_out_many(envs, list(range(400)), scripted.early_stopping)
    assert sum(turns[-1]["em"] for turns in episodes) / 400 == pytest.approx(0.3, abs=0.07)
    assert 2 < sum(map(len, episodes)) / 400 < 3


def test_early_stopping_follows_the_decomposition(envs):
    question = envs.envs[0].questions[0]
    first, second = question.decomposition
    texts = turns_of(scripted.early_stopping(asks(question), random.Random(0), continue_probability=1.0))
    assert texts == [
        f"<search>{first['title']}</search>",
        f"<think>{first['question'].rstrip('?')}</think><search>{second['title']}</search>",
        f"<think>{second['question'].replace('#1', first['answer']).rstrip('?')}</think><answer>{question.answer}</answer>",
    ]
    assert second["title"] == first["answer"]
    assert turns_of(scripted.early_stopping(asks(question), random.Random(0), continue_probability=0.0)) == [
        texts[0],
        f"<think>{first['question'].rstrip('?')}</think><answer>{first['answer']}</answer>",
    ]


@pytest.mark.parametrize(
    "decomposition", [None, ({"question": "who #9?", "answer": "x"}, {"question": "#1?", "answer": "y"})]
)
def test_early_stopping_makes_do_with_gold_titles(decomposition):
    """HotpotQA and 2WikiMultihopQA have no decomposition, and MuSiQue's names no titles."""
    question = Question("1", "Q?", "a", supporting_titles=("S", "T"), decomposition=decomposition)
    patient = turns_of(scripted.early_stopping(asks(question), random.Random(0), continue_probability=1.0))
    searches = ["<search>S</search>", "<think>S</think><search>T</search>"]
    assert patient == [*searches, "<think>T</think><answer>a</answer>"]
    hasty = turns_of(scripted.early_stopping(asks(question), random.Random(0), 0.0))
    assert hasty[-1] == "<think>S</think><answer>T</answer>"
    bare = turns_of(scripted.early_stopping(asks(Question("2", "Who?", "a")), random.Random(0)))
    assert bare == ["<search>Who?</search>", "<think>Who?</think><answer>a</answer>"]
    oracle = turns_of(scripted.oracle(asks(Question("1", "Who?", " Ada ")), random.Random(0)))
    assert oracle == ["<search>Who?</search>", "<answer>Ada</answer>"]


def test_the_scripted_searcher_by_hand():
    question = Question("1", "Where was the author of Red Sea born?", "secret")
    script = scripted.heuristic(asks(question), random.Random(0))
    assert WRITE(next(script)) == "<search>Where was the author of Red Sea born?</search>"
    found = "<information>[1] Red Sea: It sold well in Ormland. Its author is Ada Fox.\n[2] Blue: No.</information>"
    assert WRITE(script.send(found)) == "<search>Ada Fox</search>"
    found = "<information>[1] Ada Fox: Ada Fox likes Cats. She was born in Lower Ravik.</information>"
    assert WRITE(script.send(found)) == "<answer>Lower Ravik</answer>"


def test_the_scripted_searcher_answers_in_kind():
    page = "<information>[1] X: X opened on 3 May 1920 with 1,200 seats for Bo.</information>"
    kinds = {"When did X open?": "3 May 1920", "How many seats has X?": "1,200", "Is X open?": "yes"}
    for asked, expected in kinds.items():
        script = scripted.heuristic(asks(Question("1", asked, "secret")), random.Random(0))
        assert turns_of(script, page)[-1] == f"<answer>{expected}</answer>"


OPTIONS = {
    "Who was born first, Ada Kern or Bo Fox?": "Ada Kern",
    "Who is older Ada Kern or Bo Fox ?": "Ada Kern",
    "Which film is longer, The Quiet Mill, or Red Sea?": "The Quiet Mill",
    "Between 7 Days and Red Sea or Blue, which came first": "7 Days and Red Sea",
    "Which mosque has a dome, the Old Mosque or the New Mosque?": "the Old Mosque",
    "Is the film Red Sea older: a or b?": "a",
    **dict.fromkeys(("Which is sweeter,  a plum or a lemon?", "Which is sweeter,\na plum or a lemon?"), "a plum"),
    **dict.fromkeys(("Who directed Orson?", "or?"), ""),
}


def test_the_first_of_two_options():
    assert {question: scripted.first_option(question) for question in OPTIONS} == OPTIONS


def test_the_rule_by_hand():
    def plays(question, found=""):
        script = scripted.rule(asks(Question("1", question, "secret")), random.Random(0))
        return turns_of(script, f"<information>{found}</information>")

    assert plays("Are Oslo and Bergen in Norway?") == ["<answer>yes</answer>"]
    assert plays("Who is older, Ada Kern or Bo Fox?") == ["<answer>Ada Kern</answer>"]
    asked = "Who directed Red Sea?"
    turns = plays(asked, "[1] Red Sea: Red Sea was directed by Ada Kern.")
    assert turns == [f"<search>{asked}</search>", "<answer>Ada Kern</answer>"]
    assert plays("What year did Red Sea open?", "[1] X: Bo saw Red Sea open in 1920.")[-1] == "<answer>1920</answer>"
    assert plays(asked)[-1] == "<answer>unknown</answer>"


def test_the_rule_stands_for_the_scripted_agent_on_real_questions_alone(folder, envs):
    real = gymnasium.make("AgentR1/HotpotQA-v0", data=folder).unwrapped
    first = lambda env: next(env.SCRIPTS["scripted"](env, random.Random(0)))  # noqa: E731
    real.reset(options={"question": 2})
    assert first(real).answer == "yes"
    envs.reset(seed=0)
    assert first(envs.envs[0]).calls
    assert roll_out(real, real.SCRIPTS["constant"], 0, {"question": 2})[-1]["em"] == 1.0


def test_a_benchmark_that_was_changed_is_read_again(folder):
    before = gymnasium.make("AgentR1/HotpotQA-v0", data=folder).unwrapped
    assert gymnasium.make("AgentR1/HotpotQA-v0", data=folder).unwrapped.task is before.task
    file = next(path for path in sorted(Path(folder).glob("hotpotqa.train*")))
    file.write_text(file.read_text().replace(before.questions[0].question, "What is it now?"))
    assert gymnasium.make("AgentR1/HotpotQA-v0", data=folder).unwrapped.questions[0].question == "What is it now?"
    named = {"data": str(file), "split": "validation"}  # its passages lie beside it
    count = len(gymnasium.make("AgentR1/HotpotQA-v0", **named).unwrapped.task.searcher.corpus)
    with (file.parent / "passages.jsonl").open("a") as passages:
        passages.write('{"id": "new", "title": "New", "text": "This is new."}\n')
    assert len(gymnasium.make("AgentR1/HotpotQA-v0", **named).unwrapped.task.searcher.corpus) == count + 1


def test_real_questions_are_sampled_over_the_whole_file(folder, envs, monkeypatch):
    real = gymnasium.make("AgentR1/HotpotQA-v0", data=folder).unwrapped
    monkeypatch.setattr(real, "questions", [None] * 2000)
    few, many = sample_instances(real, 100), sample_instances(real, 500)
    assert len(set(few)) == 100 and few == sorted(few) == sample_instances(real, 100) and set(few) < set(many)
    assert 30 < sum(number < 1000 for number in few) < 70
    assert sample_instances(real, 0) == sample_instances(real, 9999) == list(range(2000))
    mixture = MixtureEnv({"AgentR1/HotpotQA-v0": {"kwargs": {"data": folder}}})
    monkeypatch.setattr(mixture, "questions", [None] * 2000)
    assert sample_instances(mixture, 100) == few, "of a mixture as well"
    assert sample_instances(envs.envs[0], 50) == list(range(50)), "MiniWiki's are drawn at random as they are"
    monkeypatch.setattr(real, "questions", None)
    assert sample_instances(real, 7) == list(range(7)) and len(sample_instances(real, 0)) == 500


def test_baselines_on_a_file_play_each_question_once(folder):
    rows = run_baselines("AgentR1/HotpotQA-v0", 0, kwargs={"data": folder, "split": "validation"})
    assert [row["agent"] for row in rows] == ["random", "constant", "scripted", "reader", "oracle"]
    assert {row["episodes"] for row in rows} == {3}
    assert rows[1]["score"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("asked", "trained", "best"),
    [
        (["no", "no", "yes", "Oslo"], ["yes", "yes", "yes"], "no"),
        (["Rome", "The Rome", "no"], ["Rome", "Rome", "no"], "Rome"),
        (["Oslo", "Oslo", "yes"], ["Rome"], "yes"),  # what is frequent in these questions alone is not known
        (["no", "Oslo"], [], "no"),
    ],
)
def test_the_best_constant_is_a_verdict_or_the_most_frequent_training_answer(asked, trained, best):
    questions, training = ([Question(str(i), "Q?", answer) for i, answer in enumerate(own)] for own in (asked, trained))
    task = QATask("hotpotqa", tuple(questions), None, "", training=lambda: training)
    assert task.constant == best


def test_an_outage_is_no_baseline(monkeypatch):
    monkeypatch.setattr(SearchTool, "execute_batch", lambda self, asked: 1 / 0)
    with pytest.raises(RuntimeError, match="a tool broke in 3 of the 3 episodes of the agent 'random'"):
        run_baselines("AgentR1/MiniWiki-Easy-v0", 3, kwargs={"entities": 60, "questions": 9})
