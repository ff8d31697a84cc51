import json

import pytest

from agent_envs.tools.search import show_passage
from experiments import columns, failures
from experiments.recipe import EnvConfig
from retrieval_index import Passage

QUESTION = "Where was the author of *Emma* born?"


def passage(number, title, text):
    return show_passage(number, Passage(id=str(number), title=title, text=text))


TITLES = passage(1, "Emma: a novel", "By Jane Austen."), passage(2, "Jane Austen", "From Steventon.")
FOUND = f"<information>{TITLES[0]}\n{TITLES[1]}</information>"


def episode(prediction, recall, golds=("Steventon",), calls=1, f1=0.0, found=FOUND, em=0.0):
    turns = [{"observation": QUESTION, "action": "<search>Emma | its author</search>", "reward": 0.0}] * bool(calls)
    turns.append(
        {"observation": found if calls else QUESTION, "action": f"<answer>{prediction}</answer>", "reward": 0.0}
    )
    scores = {"em": em, "f1": f1, "support_recall": recall, "support_f1": recall}
    return scores | {
        "prediction": prediction,
        "golds": list(golds),
        "calls": calls,
        "turns": len(turns),
        "episode": turns,
    }


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (episode("", 1.0), "format"),
        (episode(" ", 0.0, calls=0), "format"),
        (episode("Bath", 0.0, calls=0), "no-search"),
        (episode("Bath", 0.0), "retrieval"),
        (episode("yes", 0.5), "second-query"),
        (episode("Yes.", 1.0), "yes-no"),
        (episode("no", 1.0, golds=["yes"]), "yes-no"),
        (episode("Bath", 1.0, golds=["no"]), "yes-no"),
        (episode("Bath", 1.0), "reading"),
        (episode("Bath", 1.0, golds=["Hampshire", "the Steventon!"]), "reading"),
        (episode("Bath", 1.0, golds=["Hampshire"]), "not-in-text"),
        (episode("Bath", 1.0, golds=["tevent"]), "not-in-text"),  # part of a word
        (
            episode("Bath", 1.0, golds=["Emma of the question", "author"]),
            "not-in-text",
        ),  # the question is not what was read
        (episode("Bath", 1.0, golds=["A", "the"]), "not-in-text"),  # nothing is left of them
    ],
)
def test_the_first_cause_that_holds(wrong, cause):
    assert failures.cause_of(wrong) == cause


def results_of(tmp_path, *scores):
    """Of a run with these scores by seed; only the episodes of the best are there."""
    right = episode("Steventon", 1.0, em=1.0, f1=1.0)
    own = {
        "A": [episode("Bath", 0.5, f1=0.6), *[episode("Bath", 1.0)] * 30, right, episode("Bath", 0.5)],
        "B": [episode("", 0.0, found="<information>Invalid turn: no</information>"), right],
    }
    for column, episodes in own.items():
        lines = [json.dumps({"count": len(episodes)}), *map(json.dumps, episodes)]
        (tmp_path / f"{column}.jsonl").write_text("\n".join(lines) + "\n")
    best = max(scores)
    rows = [
        {c: {"score": s, "file": str(tmp_path / f"{c}.jsonl") if s == best else "nowhere"} for c in own} for s in scores
    ]
    recipe = {"runs": {"g": {"title": "GRPO"}}}
    above = [{"A": {"score": 9.0, "file": "nowhere"}}]  # a baseline
    return {
        "recipe": recipe, "rows": {"Rule": above, "GRPO": rows}, "seeds": {"Rule": [None], "GRPO": [*range(len(scores))]},
    }  # fmt: skip


def test_the_page_counts_the_best_run_and_shows_each_cause(tmp_path):
    page = failures.write(tmp_path, results_of(tmp_path, 0.2, 0.4, 0.3), count=5)
    text = page.read_text()
    assert text.startswith("# Wrong episodes of GRPO, seed 1\n")
    assert "| Second query | was shown some of the gold passages, and not all | 2 (6%) | 0 | 1 |" in text
    assert "| Reading | all shown, and the answer stands in the text | 30 (94%) | 0 | 0 |" in text
    assert "| Format | gave no answer that can be read | 0 | 1 (100%) | 0 |" in text
    assert "| Wrong in all | | 32 of 33 | 1 of 2 | 1 |" in text
    shown = [line for line in text.splitlines() if line.startswith("**")]
    assert [line.split("**")[1] for line in shown] == [
        "1. Format", "2. Second query", "3. Second query", "4. Reading", "5. Reading",
    ]  # fmt: skip
    assert "- Question: Where was the author of \\*Emma\\* born?\n" in text
    assert "- Emma \\| its author → Emma: a novel; Jane Austen\n- Answer: Bath. Gold: Steventon.\n" in text
    assert "- F1 0.60, support recall 0.50\n" in text
    assert "→ Invalid turn: no\n- Answer: none; its last turn: . Gold: Steventon." in text


def test_a_seed_draws(tmp_path):
    wrong = [(cause, "A", {"n": n}) for n in range(50) for cause in ("format", "reading")]
    drawn = failures.draw(wrong, 20, seed=0)
    assert [cause for cause, *_ in drawn] == ["format"] * 10 + ["reading"] * 10
    assert failures.draw(wrong, 20, seed=0) == drawn != failures.draw(wrong, 20, seed=1)
    assert len(failures.draw(wrong[:3], 20, seed=0)) == 3


def test_nothing_is_written_where_nothing_can_be_sorted(tmp_path):
    results = results_of(tmp_path, 0.5)
    for column in "AB":
        (tmp_path / f"{column}.jsonl").write_text('{"count": 1}\n{"success": 0.0, "episode": []}\n')
    assert failures.write(tmp_path, results) is None
    assert failures.write(tmp_path, results | {"rows": {"Rule": results["rows"]["Rule"]}}) is None
    assert not (tmp_path / "failures.md").exists()


def test_episodes_as_the_comparison_keeps_them(tmp_path, make_policy):
    task = EnvConfig(env="AgentR1/MiniWiki-Easy-v0", env_kwargs={"entities": 60, "questions": 20, "max_turns": 2})
    player = columns.policy_player(make_policy("subwords"), 4)
    rows = columns.evaluate_columns("GRPO", {"2 hops": (task, 3)}, 4, tmp_path, "it", lambda: player)
    results = {"recipe": {"runs": {"g": {"title": "GRPO"}}}, "rows": {"GRPO": [rows]}, "seeds": {"GRPO": [0]}}
    text = failures.write(tmp_path, results).read_text()
    assert "| Format | gave no answer that can be read | 3 (100%) | 0 |" in text
    assert text.count("- Question: ") == 3
    assert "→ Invalid turn" in text
