import json
import math

import pytest

from agent_envs.tasks.qa import QAEnv
from trainers import evaluate
from trainers.engines.engine import Completion
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.records import read_episodes
from trainers.evaluation import evaluator, naive_rag
from trainers.factory import make_envs

SMALL = '{"entities": 60, "questions": 30}'


def test_a_row_by_hand():
    episodes = [
        {"em": 1.0, "f1": 1.0, "support_recall": 1.0, "turns": 3, "calls": 2, "prediction": "x"},
        {"em": 0.0, "f1": 0.5, "support_recall": 0.5, "turns": 2, "calls": 1, "prediction": "y"},
    ]
    for episode, invalid in zip(episodes, ([True] * 3 + [False] * 12, [False]), strict=True):
        episode |= evaluator.count_invalid(invalid)  # a program's turns are more than the environment's
    row = evaluator.summarize("agent", episodes)
    low, high = row.pop("em_interval")
    assert 0 <= low <= 0.5 <= high <= 1
    assert row == {
        "name": "agent", "em": 0.5, "f1": 0.75, "support_recall": 0.75, "turns": 2.5, "calls": 1.5, "episodes": 2,
        "failed": 0.0, "tool_faults": 0, "invalid": 3 / 16,
    }  # fmt: skip


def test_a_recall_is_that_of_questions_with_gold_passages():
    info = {"em": 0.0, "support_recall": 1.0}
    infos = [evaluator.drop_recall(info, {"supporting": titles}) for titles in (["A"], [])]
    assert evaluator.summarize("agent", infos)["support_recall"] == 1.0
    assert "support_recall" not in evaluator.summarize("agent", infos[1:])


def test_a_tool_failure_costs_a_scripted_agent_the_episode_and_no_column(monkeypatch):
    """The other questions have their F1 and their kinds as without it."""
    envs = make_envs("AgentR1/MiniWiki-v0", SMALL, "validation", 8)
    script, numbers = envs.envs[0].SCRIPTS["oracle"], list(range(8))
    whole = evaluator.summarize("a", evaluator.run_script(envs, numbers, script))
    resolve = QAEnv.resolve

    def break_one(self, *args):
        *rest, info = resolve(self, *args)
        return *rest, info | {"tool_faults": int(self.question == self.questions[3])}

    monkeypatch.setattr(QAEnv, "resolve", break_one)
    infos = evaluator.run_script(envs, numbers, script)
    row = evaluator.summarize("a", infos)
    assert row.keys() == whole.keys() and row["kinds"].keys() == whole["kinds"].keys()
    for name in ("em", "f1", "substring_em"):
        assert infos[3][name] == 0 and (row[name], whole[name]) == (7 / 8, 1)


def test_every_question_is_rolled_out_once_however_many_environments_there_are(make_policy):
    policy = make_policy("subwords")
    engine = TransformersEngine(policy, ("</search>", "</answer>"))
    rows, seen = [], []
    for num_envs in (4, 7, 30):
        envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "validation", num_envs)
        infos, transcripts = evaluator.run_policy(envs, policy, engine, list(range(10)), 4)
        rows.append(evaluator.summarize("policy", infos))
        seen.append([turns[0]["observation"] for turns in transcripts])
        assert len(naive_rag.run_naive_rag(envs, policy, engine, list(range(10)), 4)) == 10
    assert rows[0] == rows[1] == rows[2]
    assert seen[0] == seen[1] == seen[2] == [q.question for q in envs.envs[0].questions[:10]]


class Parrot:
    """An engine that ends the turns of each wave with the same words."""

    max_length, processed = math.inf, None

    def __init__(self, policy, *texts):
        self.policy, self.texts, self.prompts = policy, iter(texts), []

    def reset(self):
        pass

    def submit(self, prompts, params):
        self.prompts += prompts.values()
        self.open = prompts

    def wait(self):
        done, self.open = self.open, {}
        if not done:
            return {}
        tokens = self.policy.encode(next(self.texts))
        return {key: Completion(tokens=tokens, logprobs=[0.0] * len(tokens), finish_reason="stop") for key in done}


def test_naive_rag_searches_the_question_once_and_scores_the_answer(make_policy):
    policy = make_policy("subwords")
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "validation", 4)
    question = envs.envs[0].questions[2]
    engine = Parrot(policy, f"<think>It is said.</think><answer>{question.answer}</answer>")
    (row,) = naive_rag.run_naive_rag(envs, policy, engine, [2], 50)
    assert (row["em"], row["calls"], len(engine.prompts)) == (1.0, 1.0, 1)
    prompt = policy.tokenizer.decode(engine.prompts[0])
    assert f"<search>{question.question}</search>" in prompt
    assert prompt.count("<information>[1] ") == 1
    assert not prompt.endswith("<answer>"), "a policy that was taught to think first may"
    assert row["support_recall"] >= 0.5  # the article that the question names comes first


@pytest.mark.parametrize(
    ("turn", "opening"),
    [
        ("<think>One more.</think><search>x</search>", "<think>One more.</think><answer>"),
        ("<search>x</search>", "<answer>"),
        ("nothing that can be read", "<answer>"),
    ],
)
def test_naive_rag_completes_an_answer_where_the_turn_has_none(turn, opening, make_policy):
    policy = make_policy("subwords")
    envs = make_envs("AgentR1/MiniWiki-Easy-v0", SMALL, "validation", 4)
    answer = envs.envs[0].questions[2].answer
    for said in (f"{answer}</answer> and <answer>more</answer>", f" {answer}\nand more"):
        engine = Parrot(policy, turn, said)
        (row,) = naive_rag.run_naive_rag(envs, policy, engine, [2], 50)
        begun, completed = map(policy.tokenizer.decode, engine.prompts)
        assert (row["em"], row["calls"], row["turns"], completed) == (1.0, 1, 2, begun + opening)


def test_naive_rag_searches_in_the_format_of_each_task_of_a_mixture(make_policy):
    policy = make_policy("subwords")
    easy, world = "AgentR1/MiniWiki-Easy-v0", json.loads(SMALL)
    tasks = {easy: {"kwargs": world}, "AgentR1/MiniWiki-v0": {"kwargs": {**world, "format": "hermes"}}}
    envs = make_envs("AgentR1/Mixture-v0", json.dumps({"tasks": tasks}), "validation", 4)
    infos = naive_rag.run_naive_rag(envs, policy, Parrot(policy, "<answer>x</answer>"), list(range(4)), 50)
    assert {env.id for env in envs.envs} == set(tasks)
    assert all(info["calls"] == 1 for info in infos) and all(env.history.turns[0].error is None for env in envs.envs)


def test_each_kind_of_question_has_a_score():
    asked = (1, "2 hops"), (0, "1 hop"), (0, "2 hops"), (1, "1 hop"), (1, "1 hop")
    episodes = [{"em": em, "kind": kind} for em, kind in asked]
    assert evaluator.summarize("agent", episodes)["kinds"] == {"1 hop": pytest.approx(2 / 3), "2 hops": 0.5}
    assert evaluator.summarize("agent", episodes[::2], samples=3).get("kinds") is None  # one question
    assert "kinds" not in evaluator.summarize("agent", [*episodes, {"em": 1}])  # not all have one
    many = [{"em": 1, "kind": str(i)} for i in range(9)]
    assert "kinds" not in evaluator.summarize("agent", many)


def test_naive_rag_scores_what_is_too_long_to_be_read_as_no_answer(make_policy):
    envs = make_envs("AgentR1/MiniWiki-v0", SMALL, "validation", 4)
    policy = make_policy("words")
    engine = TransformersEngine(policy, envs.envs[0].stop)
    engine.max_length = 80  # the question can be read, what is found cannot
    infos = naive_rag.run_naive_rag(envs, policy, engine, list(range(4)), 4)
    assert [info["em"] for info in infos] == [0.0] * 4


def test_the_command_writes_its_table(model_folder, tmp_path, capsys):
    args = {"env": "MiniWiki-Easy", "env_kwargs": SMALL, "checkpoint": (model_folder,), "questions": 6}
    rows = evaluate.main(evaluate.Args(**args, max_new_tokens=4, num_envs=4, out=tmp_path))
    assert rows[0]["em"] == 1.0
    assert all(set(row["kinds"]) == {"bridge", "compositional"} for row in rows)  # policies, scripts and Naive RAG
    written = json.loads((tmp_path / "evaluation.json").read_text())
    assert written["source"].startswith("miniwiki:validation")
    assert [row["name"] for row in written["rows"]] == [row["name"] for row in rows]
    page = (tmp_path / "evaluation.md").read_text()
    assert written["source"] in page and page.count("\n| ") == 2 + len(rows) and "| Bridge | Compositional |" in page
    named = f'data-agent="{model_folder}">{model_folder.name}</th>'  # by its end; the whole path leads to its episodes
    assert named in (tmp_path / "report.html").read_text()
    shown, told = capsys.readouterr()
    assert written["source"] in shown and "Naive RAG" in told


def test_the_engine_is_the_one_that_was_asked_for(model_folder, tmp_path, monkeypatch):
    made = []

    def make_engine(name, policy, stop, vllm_url, vllm_kv_gib):
        made.append((name, vllm_url, vllm_kv_gib))
        return TransformersEngine(policy, stop)

    monkeypatch.setattr(evaluate, "make_engine", make_engine)
    options = {"env_kwargs": SMALL, "model": str(model_folder), "questions": 2, "max_new_tokens": 2, "engine": "vllm"}
    for more in ({"vllm_url": ("http://h",)}, {"vllm_kv_gib": 0.5}):
        evaluate.main(evaluate.Args(**options, **more, num_envs=2, out=tmp_path))
    assert made == [("vllm", ("http://h",), 2.0), ("vllm", (), 0.5)]


def test_an_evaluation_that_breaks_off_leaves_the_earlier_one_whole(tmp_path, monkeypatch):
    args = {"env": "Bandit", "out": tmp_path}
    evaluate.main(evaluate.Args(**args, questions=6))
    earlier = {path.name: path.read_bytes() for path in tmp_path.glob("e*")}
    assert {"episodes.jsonl", "evaluation.json", "evaluation.md"} <= earlier.keys()

    def fail(*args):
        raise ValueError("no such model")

    monkeypatch.setattr(evaluate, "load_agent", fail)
    with pytest.raises(ValueError, match="no such model"):
        evaluate.main(evaluate.Args(**args, questions=4, model=("gone",)))
    assert {name: (tmp_path / name).read_bytes() for name in earlier} == earlier
    assert not (tmp_path / ".unfinished").exists()
    evaluate.main(evaluate.Args(**args, questions=4))
    assert len({record["instance"] for record in read_episodes(tmp_path / "episodes.jsonl")}) == 4
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="is the folder of a run, whose episodes would be lost"):
        evaluate.Args(**args).check_inputs()


def test_gsm8k_has_questions_and_nothing_to_search(tmp_path):
    for name in ("train", "test"):
        rows = [{"question": f"What is {i} plus 1 ({name})?", "answer": f"It is\n#### {i + 1}"} for i in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kwargs = json.dumps({"source": "gsm8k", "data": str(tmp_path)})
    assert not naive_rag.can_be_searched_for(make_envs("AgentR1/Calculator-v0", kwargs, "train", 1).envs[0])
    rows = evaluate.main(evaluate.Args(env="Calculator", env_kwargs=kwargs, questions=0, out=tmp_path / "table"))
    assert rows and {row["episodes"] for row in rows} == {6}
