"""Question answering: what a turn earns, and what earns nothing."""

import json
from types import SimpleNamespace

import gymnasium
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import retrieval_index
from agent_envs.tasks.qa import QAEnv


def hotpot(folder, **arguments):
    return gymnasium.make("AgentR1/HotpotQA-v0", data=folder, **arguments).unwrapped


def test_a_good_episode_itemised(folder):
    env = hotpot(folder, k=1)
    question, info = env.reset(options={"question": 1})
    assert question == "Where was the director of The Quiet Mill born?"
    assert info["source"].startswith("local:") and info["question_id"] == "train1"
    _, r1, _, _, first = env.step("<search>The Quiet Mill</search>")
    _, r2, _, _, second = env.step("<search>Brunner born May 1921</search>")
    observation, r3, terminated, truncated, last = env.step("<think>done</think><answer>the Zürich.</answer>")
    assert first["reward_terms"] == {"answer": 0, "format": 0, "progress": 0.15, "invalid": 0, "repeat": 0}
    assert (first["support_recall"], second["support_recall"]) == (0.5, 1.0)
    assert last["reward_terms"]["answer"] == 1.0 and last["reward_terms"]["format"] == 0.05
    assert r1 + r2 + r3 == pytest.approx(1.05)
    assert (observation, terminated, truncated) == ("", True, False)
    assert (last["em"], last["f1"], last["prediction"], last["golds"]) == (1.0, 1.0, "the Zürich.", ["Zürich"])


TEXTS = "Ada Kern liked cats.", "Ada Kern made Nebelmeer.", "Kern is a native of Zürich."
MUSIQUE = {
    **{"id": "2hop__1_2", "question": "Where was the director of Nebelmeer born?", "answer": "Zürich"},
    **{"answerable": True, "question_decomposition": []},
    "paragraphs": [
        {"idx": i, "title": "Ada Kern", "paragraph_text": text, "is_supporting": i > 0} for i, text in enumerate(TEXTS)
    ],
}


@pytest.fixture
def musique(tmp_path):
    """A question whose two gold paragraphs share a title with one that is not gold."""
    (tmp_path / "musique_ans_v1.0_train.jsonl").write_text(json.dumps(MUSIQUE), "utf-8")
    return tmp_path


def musique_env(folder, **arguments):
    return gymnasium.make("AgentR1/MuSiQue-v0", data=str(folder), k=1, **arguments).unwrapped


def recalls(env, *queries):
    env.reset(options={"question": 0})
    return [env.step(f"<search>{query}</search>")[4]["support_recall"] for query in queries]


def test_a_gold_passage_whose_answer_is_cut_off_is_not_found(musique):
    for max_chars, expected in {41: 0.5, 40: 0.0}.items():
        env = musique_env(musique, max_chars=max_chars)
        assert recalls(env, "native") == [expected]
        assert env.missing_titles() == ["Ada Kern"], "there are two of that title"
        assert ("Zürich" in env.feedback[0]) == bool(expected)
        assert recalls(env, "made Nebelmeer") == [0.5], "what holds no answer counts as soon as it is shown"


def test_progress_pays_for_the_gold_paragraph_and_not_for_its_title(musique):
    env = musique_env(musique)
    assert recalls(env, "cats", "Nebelmeer", "Nebelmeer", "native Zürich") == [0.0, 0.5, 0.5, 1.0]
    assert env.step("<answer>Zürich</answer>")[4]["support_f1"] == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3))


def test_paragraphs_are_told_by_their_text_whatever_the_corpus_does_to_it(musique):
    texts = ["ADA Kern liked &amp; cats.", "Ada  Kern made “Nebelmeer”.", "Kern is a native of Zürich"]
    rows = [{"id": str(i), "title": "Ada Kern", "text": text} for i, text in enumerate(texts)]
    (musique / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    env = musique_env(musique, corpus=str(musique / "c.jsonl"))
    assert recalls(env, "cats", "Nebelmeer", "native") == [0.0, 0.5, 1.0]


def test_titles_count_where_the_corpus_has_other_paragraphs_or_is_on_a_server(musique, monkeypatch):
    """Another edition of Wikipedia, cut in another way: nothing could ever be credited by text."""
    row = {"id": "1", "title": "Ada Kern", "text": "Ada Kern made Nebelmeer. Kern is a native of Zürich."}
    (musique / "c.jsonl").write_text(json.dumps(row), "utf-8")
    assert recalls(musique_env(musique, corpus=str(musique / "c.jsonl")), "Nebelmeer") == [1.0]
    served = musique_env(musique).task.searcher
    monkeypatch.setattr("agent_envs.tasks.qa_data._open", lambda *_: SimpleNamespace(search=served.search))
    assert recalls(musique_env(musique, index="http://127.0.0.1:1"), "cats", "Nebelmeer") == [1.0, 1.0]


def test_an_article_is_read_in_full(folder):
    assert set(hotpot(folder).tools) == {"search"}
    env = hotpot(folder, k=1, max_chars=30, read=True)
    _, info = env.reset(options={"question": 1})
    assert "- <search>query</search>: " in info["instructions"] and "- <read>title</read>: " in info["instructions"]
    shown, _, _, _, searched = env.step("<search>The Quiet Mill</search>")
    assert shown == "<information>[1] The Quiet Mill: The …</information>"
    shown, _, _, _, opened = env.step("<read>emil brunner</read>")
    assert "born in Zürich on 4 May 1921" in shown and opened["calls"] == 2
    assert (searched["support_recall"], opened["support_recall"]) == (0.5, 1.0)
    assert opened["reward_terms"]["progress"] == pytest.approx(0.15)
    assert env.step("<read> Emil Brunner </read>")[4]["reward_terms"]["repeat"] == -0.05


def test_a_part_of_an_article_shows_what_it_holds(tmp_path):
    article = {"id": "a", "title": "Ada Kern", "text": "She made watches. " * 300 + "She was born in Uri."}
    question = {"question": "Where was she born?", "answer": "Uri", "supporting_titles": ["Ada Kern"]}
    for name, row in (("c", article), ("q", question)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row), "utf-8")
    places = {"data": str(tmp_path / "q.jsonl"), "corpus": str(tmp_path / "c.jsonl")}
    env = QAEnv("own", **places, holdout=1, split="validation", k=1, read=True)
    env.reset(seed=0)
    parts = [env.step(f"<read>Ada Kern{part}</read>") for part in ("", " #2")]
    assert ["Uri" in part[0] for part in parts] == [False, True]
    assert [part[4]["support_recall"] for part in parts] == [0.0, 1.0]


def test_passages_are_cut_by_tokens(folder, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(f"{tmp_path}/tokenizer.json")
    options = {"data": folder, "passage_tokens": 9, "tokenizer": str(tmp_path)}
    env = gymnasium.make("AgentR1/HotpotQA-v0", k=1, **options).unwrapped
    env.reset(options={"question": 0})
    shown = env.step("<search>Quiet Mill</search>")[0]
    assert shown == "<information>[1] The Quiet Mill: The Quiet Mill is …</information>" and len(shown.split()) == 9
    assert "…" not in env.step("<search>Oslo Norway</search>")[0], "nine words fit"
    vector = gymnasium.make_vec("AgentR1/HotpotQA-v0", num_envs=2, **options)
    assert len({env.tools["search"].batch_key for env in vector.envs}) == 1, "or they would search one by one"
    for wrong in ({"passage_tokens": 9}, {"passage_tokens": 1, "tokenizer": str(tmp_path)}):
        with pytest.raises(ValueError, match="max_tokens needs a tokenizer"):
            hotpot(folder, **wrong)


def test_truncation_still_gives_the_itemised_reward(folder):
    env = hotpot(folder, max_turns=2)
    env.reset(options={"question": 0})
    env.step("<search>The Quiet Mill</search>")
    observation, reward, terminated, truncated, info = env.step("<search>Emil Brunner</search>")
    assert (terminated, truncated, info["em"], info["prediction"]) == (False, True, 0.0, "")
    assert "Emil Brunner" in observation
    assert info["reward_terms"]["progress"] == -0.3 == reward
    assert info["reward_terms"]["answer"] == info["reward_terms"]["format"] == 0.0


def test_invalid_failed_and_repeated_calls_cost(folder):
    env = hotpot(folder)
    env.reset(options={"question": 2})
    assert env.step("no action")[4]["reward_terms"]["invalid"] == -0.1
    assert env.step("<search>Zürich a</search>")[4]["reward_terms"]["repeat"] == 0.0
    # Case and white space do not count, those of other alphabets neither.
    assert env.step("<search> ZÜRICH\u2003A </search>")[4]["reward_terms"]["repeat"] == -0.05
    observation, _, _, _, info = env.step(f"<search>{'x' * 2001}</search>")
    assert "2000 characters at most" in observation and info["reward_terms"]["invalid"] == -0.1
    info = env.step("<answer>yes</answer>")[4]
    assert info["reward_terms"]["format"] == pytest.approx(0.05 * 4 / 5) and info["em"] == 1.0


def test_held_out_training_questions():
    arguments = {"entities": 100, "questions": 10}
    whole, ours = QAEnv(**arguments).questions, QAEnv(**arguments, holdout=4).questions
    aside = QAEnv(split="validation", **arguments, holdout=4)
    assert [question.id for question in aside.questions] == [whole[i].id for i in (0, 4, 8)]
    assert [question.id for question in ours] == [q.id for i, q in enumerate(whole) if i % 4]
    assert aside.task.source.endswith("only each 4th question")
    for wrong, least in ((1, "0, or at least 2"), (-2, "an integer of at least 0"), ("x", "an integer of at least 0")):
        with pytest.raises(ValueError, match=f"holdout must be {least}, got {wrong!r}"):
            QAEnv(holdout=wrong)
    with pytest.raises(ValueError, match="split_seed must be an integer of at least 0"):
        QAEnv("own", data="my.jsonl", split_seed=1.5)


def test_a_question_in_other_words_is_on_the_same_side():
    sides = [QAEnv(entities=100, questions=400, holdout=5, split=split).questions for split in ("train", "validation")]
    assert len(sides[1]) > 40
    asked = [{json.dumps(question.decomposition) for question in side} for side in sides]
    assert not asked[0] & asked[1]


def test_a_server_that_does_not_answer_is_named_before_an_episode_begins(tmp_path):
    (tmp_path / "my.jsonl").write_text('{"question": "Who is the mayor?", "answer": "Mira Holt"}')
    place = {"data": str(tmp_path / "my.jsonl"), "index": "http://127.0.0.1:9", "holdout": 1, "split": "validation"}
    with pytest.raises(retrieval_index.SearchFailed, match=r"index: http://127\.0\.0\.1:9/.*refused.*start its server"):
        QAEnv("own", **place)


def test_shaping_is_taken_back_where_a_caller_ends_the_episode(musique):
    env = musique_env(musique)
    env.reset(options={"question": 0})
    paid = [env.step("<search>Nebelmeer</search>")]
    env.fits = lambda observation, context: False
    paid.append(env.step("<search>native Zürich</search>"))
    assert [outcome[3] for outcome in paid] == [False, True]
    assert paid[0][4]["reward_terms"]["progress"] > 0
    assert sum(outcome[4]["reward_terms"]["progress"] for outcome in paid) == pytest.approx(0)


def test_a_judge_is_weighed_as_asked_for(folder):
    judge = {"url": "http://127.0.0.1:9/v1", "model": "small"}
    for rewards, weight in (({}, 1.0), ({"judge": 0.0}, 0.0), ({"judge": 0.5}, 0.5)):
        assert hotpot(folder, judge=judge, rewards=rewards).reward["judge"][0] == weight
    with pytest.raises(ValueError, match="the reward term judge needs a judge"):
        hotpot(folder, rewards={"judge": 1.0})
    hotpot(folder, rewards={"judge": 0.0})
