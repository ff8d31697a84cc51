"""`trainers.evaluate` with models behind an API, and with several attempts at each question."""

import json
import os
import signal

import pytest
from chat_server import Trouble, number_of_turn, serve

from agent_envs import scoring
from trainers import evaluate
from trainers.checkpoints.lock import FolderInUse, hold_folder
from trainers.episodes.records import read_episodes
from trainers.evaluation import evaluator
from trainers.evaluation.answers import ANSWERS_FILE
from trainers.factory import make_envs
from trainers.runtime.signals import TrainingStopped

SMALL = '{"entities": 60, "questions": 30}'


@pytest.fixture
def golds():
    """The answers of the held-out questions."""
    env = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "validation", 1).envs[0]
    return {question.question: question.answer for question in env.questions}


@pytest.fixture
def answer_some(golds):
    """Models that search once and answer: "good" is right, "bad" is not, and "half" is right at every second question."""

    def say(request):
        if not number_of_turn(request):
            return [("search", '{"query": "a town"}')]
        question = request["messages"][1]["content"]
        right = {"good": True, "bad": False, "half": list(golds).index(question) % 2 == 0}[request["model"]]
        return [("answer", json.dumps({"text": golds[question] if right else "no idea"}))]

    return say


def run(out, url, *models, **args):
    pytest.importorskip("openai", reason="pip install openai", exc_type=ImportError)
    options = {"env": "MiniWiki-Easy", "env_kwargs": SMALL, "questions": 8, "num_envs": 4, "concurrency": 3, "out": out}
    return evaluate.main(evaluate.Args(api=url, model=models, **options | args))


def written(out):
    return json.loads((out / "evaluation.json").read_text()), (out / "evaluation.md").read_text()


def test_models_are_compared_in_one_table(answer_some, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serve(answer_some) as chat:
        rows = run(tmp_path, chat.url, "half", "good", "bad", api_key_env="MY_KEY")
    by_name = {str(row["name"]): row for row in rows}
    assert [by_name[name]["em"] for name in ("half", "good", "bad")] == [0.5, 1.0, 0.0]
    assert "difference" not in by_name["half"]
    assert by_name["good"]["difference"] == by_name["Oracle (knows the answer)"]["difference"] == 0.5
    assert by_name["bad"]["difference"] == -0.5
    low, high = by_name["good"]["difference_interval"]
    assert 0 < low < 0.5 < high < 1
    assert by_name["good"]["prompt_tokens"] == 8 * 2 * 10 and by_name["good"]["completion_tokens"] == 8 * 2 * 3
    result, page = written(tmp_path)
    assert [row["name"] for row in result["rows"]] == [row["name"] for row in rows]
    for cell in ("function calls", "its own temperature", "| Tokens in |", "| good | 1.000 |", "| +0.500 |"):
        assert cell in page
    records = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert len({record["key"] for record in records}) == len(records)
    assert {record["agent"] for record in records} == set(by_name)
    assert len({frozenset(record) for record in records}) == 1  # the same fields in every line
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert chat.keys[0] == "Bearer sk-secret" and not any("secret" in text for text in capsys.readouterr())
    assert not any(b"secret" in content for content in kept)


def test_malformed_turns_have_a_column_and_a_length_is_advised(tmp_path, capsys):
    with serve(lambda request: "I do not know." if number_of_turn(request) else [("search", '{"query": "a"}')]) as chat:
        rows = run(tmp_path, chat.url, "m", env_kwargs=SMALL[:-1] + ', "max_turns": 4}')
    assert rows[-1]["invalid"] == 0.75 and all(row["invalid"] == 0 for row in rows[:-1])
    assert "| Invalid turns |" in written(tmp_path)[1] and "| 0.750 |" in written(tmp_path)[1]
    assert (
        "m: the longest turn is the server's, and some servers have none: --max-new-tokens" in capsys.readouterr().err
    )


def test_a_checkpoint_is_compared_with_it(answer_some, model_folder, tmp_path):
    folder = str(model_folder)
    with serve(answer_some) as chat:
        rows = run(tmp_path / "out", chat.url, "good", checkpoint=(folder,), questions=2, max_new_tokens=4)
    assert [row["name"] for row in rows][-3:] == [f"Naive RAG ({folder})", folder, "good"]
    assert rows[-1]["difference_to"] == folder and rows[-1]["difference"] == 1.0


def read_answers(folder):
    return list(read_episodes(folder / ANSWERS_FILE))


def test_what_was_played_before_ctrl_c_is_not_asked_for_again(answer_some, tmp_path, capsys):
    def say(request):
        if len(chat.heard) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return answer_some(request)

    with serve(say) as chat:
        with pytest.raises(SystemExit) as ended:
            run(tmp_path, chat.url, "half")
        told = capsys.readouterr().err
        assert ended.value.code == 128 + signal.SIGINT
        kept = read_answers(tmp_path)
        assert 0 < len(kept) < 8 and f"{len(kept)} of 8 episodes of half are kept" in told
        with open(tmp_path / ANSWERS_FILE, "a") as file:
            file.write('{"key":"table/0/api-half/9')  # as where it was killed in a line
        before = len(chat.heard)
        rows = run(tmp_path, chat.url, "half")
        again = run(tmp_path, chat.url, "half")
        assert len(chat.heard) - before == 2 * (8 - len(kept))
    assert rows == again and rows[-1]["em"] == 0.5
    keys = [record["key"] for record in read_episodes(tmp_path / "episodes.jsonl")]
    assert len(keys) == len(set(keys))


def test_more_questions_attempts_and_models_go_on_and_other_settings_are_refused(answer_some, tmp_path):
    with serve(answer_some) as chat:
        run(tmp_path, chat.url, "half", questions=4)
        assert len(chat.heard) == 8
        rows = run(tmp_path, chat.url, "half", "good", questions=6, samples=2, concurrency=1)
        assert len(chat.heard) == 8 + 2 * (2 * 6 * 2 - 4)
        assert rows[-1]["em"] == rows[-1]["pass_at_k"] == 1.0
        for change, told in (
            ({"temperature": 0.5}, "temperature was None, and is 0.5"),
            ({"format": "hermes"}, "format was 'native', and is 'hermes'"),
            ({"env_kwargs": '{"entities": 60, "questions": 20}'}, "env_kwargs was"),
            ({"max_new_tokens": 9}, "max_new_tokens was"),
            ({"split": "train"}, "s[a-z]* was"),
        ):
            with pytest.raises(ValueError, match=told) as refused:
                run(tmp_path, chat.url, "half", **change)
            assert "\n" not in str(refused.value) and "another --out" in str(refused.value)
    evaluate.main(evaluate.Args(env_kwargs=SMALL, questions=2, num_envs=2, out=tmp_path))
    assert len([r for r in read_answers(tmp_path) if r["agent"] == "half"]) == 12  # what was paid for stays


def test_episodes_that_fail_are_counted_and_asked_again(answer_some, golds, tmp_path, capsys):
    bad, refuses = list(golds)[::2], [True]  # not in a row at first, and then alone

    def say(request):
        if refuses[0] and request["messages"][1]["content"] in bad:
            raise Trouble(400, {"error": {"message": "filtered"}})
        return answer_some(request)

    with serve(say) as chat:
        for _ in range(2):  # again they are asked, and fail: the endpoint has answered the others
            with pytest.raises(TrainingStopped, match=r"the API gave no answer, in 50\.0% of the episodes of good"):
                run(tmp_path, chat.url, "good", concurrency=1)
            result, page = written(tmp_path)
            row = result["rows"][-1]
            assert row["failed"] == row["em"] == row["f1"] == 0.5 and row["problems"] == {"400: filtered": 4}
            assert "| 0.500 |" in page
            assert "4 episodes of good could not be finished: 400: filtered" in capsys.readouterr().err
        refuses[0], before = False, len(chat.heard)
        rows = run(tmp_path, chat.url, "good")
        assert len(chat.heard) - before == 2 * 4
    assert (rows[-1]["failed"], rows[-1]["em"]) == (0, 1)
    keys = [r["key"] for r in read_episodes(tmp_path / "episodes.jsonl")]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"api": "http://h/v1"}, "give --model"),
        ({"api": "h:80", "model": ("m",)}, "such as http"),
        ({"api": "http://user:key@h/v1", "model": ("m",)}, "environment variable"),
        ({"api": "https://h/v1?key=abc", "model": ("m",)}, "environment variable"),
        ({"api": "http://h/v1", "model": ("m",), "format": "xml"}, "there is no format 'xml'"),
        ({"api": "http://h/v1", "model": ("m",), "format": "nope:Y"}, "No module named 'nope'"),
        ({"api": "http://h/v1", "model": ("m", "m")}, "named once"),
        ({"api": "http://h/v1", "model": ("m",), "timeout": 0}, "timeout must be above 0"),
        ({"model": ("m",), "format": "tags"}, "format is for api"),
        ({"samples": 4, "temperature": 0.0}, "all the same"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"model": ("a", "b"), "checkpoint": ("c",)}, "one, or none"),
        ({"model": ("a", "b"), "engine": "vllm"}, "one model, not 2"),
        ({"vllm_url": ("http://h",)}, "is for engine 'vllm'"),
        ({"api": "http://h/v1", "model": ("m",), "engine": "vllm"}, "engine makes no"),
    ],
)
def test_arguments_that_are_refused(args, told):
    if "api" in args:
        pytest.importorskip("openai", reason="pip install openai", exc_type=ImportError)
    with pytest.raises(ValueError, match=told):
        evaluate.Args(**args)


# -- several attempts --------------------------------------------------------------------------------------------------


def test_pass_at_k_and_average_at_k_by_hand():
    """An attempt passes with a score of 1: partial credit counts in the average, and solves nothing."""
    episodes = [{"em": float(x), "turns": 1} for x in (1, 0.5, 0.5, 0.5, 1, 1, 1, 1, 0, 0, 0, 0)]
    row = evaluator.summarize("agent", episodes, samples=4)
    assert row["em"] == pytest.approx(6.5 / 12) and row["samples"] == 4 and row["episodes"] == 12
    assert row["pass"] == {"1": pytest.approx(5 / 12), "2": pytest.approx(0.5), "4": pytest.approx(2 / 3)}
    assert row["pass_at_k"] == row["pass"]["4"]
    # Over questions: three of them, whose means are .625, one and zero.
    assert row["em_interval"] == scoring.bootstrap_interval([0.625, 1.0, 0.0])
    assert row["pass_at_k_interval"] == scoring.bootstrap_interval([1.0, 1.0, 0.0])
    assert "pass" not in evaluator.summarize("agent", episodes)


def test_a_continuation_that_is_refused_ends_as_one_that_begins(answer_some, tmp_path):
    """After three episodes, in one line; and the table of before stays."""
    refuses = [False]

    def say(request):
        if refuses[0]:
            raise Trouble(401, {"error": {"message": "no money"}})
        return answer_some(request)

    with serve(say) as chat:
        run(tmp_path, chat.url, "good", questions=4)
        before, refuses[0], heard = written(tmp_path), True, len(chat.heard)
        with pytest.raises(TrainingStopped, match=r"gives no turn of good: .*no money"):
            run(tmp_path, chat.url, "good", questions=20, concurrency=1)
        assert len(chat.heard) - heard == 3
    assert written(tmp_path) == before


def test_answers_to_other_questions_do_not_count(tmp_path):
    (tmp_path / "passages.jsonl").write_text(json.dumps({"title": "Tarn", "text": "Its mayor is Mira."}) + "\n")
    env_kwargs = json.dumps({"data": str(tmp_path / "my.jsonl"), "holdout": 1})
    options = {"env": "QA", "env_kwargs": env_kwargs, "questions": 0}
    with serve(lambda request: [("answer", '{"text": "Foo"}')]) as chat:
        for gold in ("Foo", "Bar"):
            rows = [{"question": f"Who is {gold} {i}?", "answer": gold} for i in range(3)]
            (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            if gold == "Foo":
                assert run(tmp_path / "out", chat.url, "m", **options)[-1]["em"] == 1.0
        with pytest.raises(ValueError, match=r"3 answers of an API to other questions.*their file was changed"):
            run(tmp_path / "out", chat.url, "m", **options)


def test_two_evaluations_of_one_folder(tmp_path):
    with hold_folder(tmp_path / "a"), pytest.raises(FolderInUse):
        evaluate.main(evaluate.Args(env_kwargs=SMALL, questions=2, out=tmp_path / "a"))


def test_a_model_here_tries_each_question_several_times(model_folder, tmp_path):
    options = {"env_kwargs": SMALL, "checkpoint": (model_folder,), "max_new_tokens": 6, "questions": 5}
    rows = evaluate.main(evaluate.Args(**options, samples=3, num_envs=4, out=tmp_path / "a"))
    assert rows[-1]["episodes"] == 15 and rows[-1]["samples"] == 3 and "pass_at_k" in rows[-1]
    assert "EM avg@3 | 95% CI | pass@3 |" in (tmp_path / "a" / "evaluation.md").read_text()
    records = [r for r in read_episodes(tmp_path / "a" / "episodes.jsonl") if r["agent"] == rows[-1]["name"]]
    assert [r["sample"] for r in records] == [0, 1, 2] * 5
    assert len({r["instance"] for r in records}) == 5 and len({r["question"] for r in records}) == 5
    assert len({str(r["messages"]) for r in records}) > 5  # sampled, at temperature 1
    again = evaluate.main(evaluate.Args(**options, samples=3, num_envs=4, out=tmp_path / "b"))
    assert rows == again
