"""Several tools at once: the world, the questions, the task."""

import random
import re
from fractions import Fraction
from types import SimpleNamespace

import pytest

from agent_envs.generators.instances import Redraw
from agent_envs.generators.mixed import KINDS, YEARS, Asker, MixedQuestion, best_year, make_mixed_world, make_question
from agent_envs.tasks.mixed import MixedEnv
from agent_envs.types import ToolCall


def of_kind(kind):
    world = make_mixed_world(200, 0, "train")
    return [make_question(world, random.Random(f"{kind}{seed}"), (kind,)) for seed in range(20)]


def test_the_tables_cover_the_world():
    mixed = make_mixed_world(200, 0, "train")
    (towns,), (companies,) = (mixed.database.query(f"SELECT COUNT(*) FROM {t}").rows for t in ("visitors", "accounts"))
    assert towns[0] == len(mixed.world.names["town"]) * len(YEARS)
    assert companies[0] == len(mixed.world.names["company"]) * len(YEARS)
    assert mixed.database.query("SELECT COUNT(*) FROM accounts WHERE profit >= revenue").rows == ((0,),)
    assert make_mixed_world(200, 0, "train") is mixed
    assert make_mixed_world(200, 1, "train").world.names != mixed.world.names


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_takes_the_tools_that_its_kind_names(kind):
    for question in of_kind(kind):
        used = {call.name for call in question.calls}
        assert "+".join(name for name in ("search", "query", "calculate") if name in used) == kind == question.kind
        parts = len(question.titles) + len(question.cells) + len(question.values)
        assert question.text.endswith("?") and len(question.calls) == parts


@pytest.mark.parametrize("kind", ["search+query", "search+query+calculate", "query+calculate", "query"])
def test_what_the_tables_say_stands_in_no_article(kind):
    """So that no search makes up for a query."""
    world = make_mixed_world(200, 0, "train")
    for question in of_kind(kind):
        articles = " ".join(p.text for p in world.searcher.search([question.text], 20)[0])
        said = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", articles)}
        assert not {cell for cell in question.cells if cell not in YEARS and "SUM" not in str(question.calls)} & said


def test_golds_agree_with_the_world():
    mixed = make_mixed_world(200, 0, "train")
    for seed in range(40):
        question = make_question(mixed, random.Random(seed), ("search+query",))
        sql = question.calls[-1].arguments["sql"]
        subject, year = re.search(r"= '([^']+)' AND year = (\d+)", sql).groups()
        column = next(name for name in ("visitors", "profit", "revenue") if name in question.text or name == "revenue")
        table, whose = ("visitors", "town") if column == "visitors" else ("accounts", "company")
        found = mixed.database.query(f"SELECT {column} FROM {table} WHERE {whose} = '{subject}' AND year = {year}")
        assert found.rows == ((int(question.answer),),)


def test_of_two_best_years_none_is_asked_for(monkeypatch):
    mixed = make_mixed_world(200, 0, "train")
    towns = mixed.world.names["town"]
    fewest = SimpleNamespace(choice=lambda of: towns[0] if of is towns else of[-1])
    assert "fewest visitors" in best_year(Asker(mixed, fewest, "query")).text
    monkeypatch.setattr(mixed.database, "query", lambda sql: SimpleNamespace(rows=((7,), (7,))))
    with pytest.raises(Redraw):
        best_year(Asker(mixed, fewest, "query"))


def make():
    """An episode with a question that is known: two articles, one cell, one calculation."""
    env = MixedEnv(entities=200)
    env.reset(seed=0)
    mixed = env.mixed
    town, other = mixed.world.names["town"][:2]
    sql = f"SELECT visitors FROM visitors WHERE town = '{town}' AND year = 2015"
    ((cell,),) = mixed.database.query(sql).rows
    needed = [frozenset(part) for part in ({town, other}, {cell}, {Fraction(cell + 1)})]
    env.question = MixedQuestion("?", str(cell + 1), "test", (ToolCall("query", {"sql": sql}),), *needed)
    env._met = set()
    return env, town, other, cell


def test_rewards_to_the_number():
    env, town, other, cell = make()
    said, reward, *_, info = env.step(f"<search>{town}</search>")
    assert town in said and info["progress"] >= 0.25 and reward == pytest.approx(0.3 * info["progress"])
    before = info["progress"]
    said, reward, *_, info = env.step(f"<query>{env.question.calls[0].arguments['sql']}</query>")
    assert str(cell) in said and info["progress"] == before + 0.25 and reward == pytest.approx(0.075)
    assert env.step("<query>SELECT nothing FROM visitors</query>")[1] == pytest.approx(-0.1)
    assert env.step(f"<search>{town}</search>")[1] == pytest.approx(-0.05)
    env.step(f"<search>{other}</search><calculate>{cell} + 1</calculate>")
    _, reward, terminated, truncated, info = env.step(f"<answer>{cell + 1}</answer>")
    assert info["progress"] == 1.0 and reward == pytest.approx(1.0 + 0.05 - 0.3)
    assert (terminated, truncated) == (True, False)
    assert (info["success"], info["prediction"], info["gold"]) == (1.0, str(cell + 1), str(cell + 1))
