"""Several tools at once: the world, the questions, the task."""

import pickle
import random
import re
from fractions import Fraction

import numpy as np
import pytest

from agent_envs.games.split import split_of
from agent_envs.generators.mixed.asker import MixedQuestion
from agent_envs.generators.mixed.questions import KINDS, is_right, make_question
from agent_envs.generators.mixed.world import YEARS, make_mixed_world
from agent_envs.tasks.mixed import MixedEnv, make_vector
from agent_envs.types import ToolCall
from agent_envs.utils.checker import check_agent_env
from agent_envs.utils.scripts import roll_out

SMALL = {"entities": 200}
ORACLE = MixedEnv.SCRIPTS["oracle"]


def of_kind(kind, count=20, entities=200):
    world = make_mixed_world(entities, 0, "train")
    return [make_question(world, random.Random(f"{kind}{seed}"), (kind,)) for seed in range(count)]


def test_the_tables_cover_the_world():
    mixed = make_mixed_world(200, 0, "train")
    (towns,), (companies,) = (mixed.database.query(f"SELECT COUNT(*) FROM {t}").rows for t in ("visitors", "accounts"))
    assert towns[0] == len(mixed.world.names["town"]) * len(YEARS)
    assert companies[0] == len(mixed.world.names["company"]) * len(YEARS)
    assert mixed.database.query("SELECT COUNT(*) FROM accounts WHERE profit >= revenue").rows == ((0,),)
    assert (
        make_mixed_world(200, 0, "train") is mixed
        and make_mixed_world(200, 1, "train").world.names != mixed.world.names
    )


def test_worlds_of_the_splits_share_no_name():
    train, validation = (make_mixed_world(200, 0, split).world.names for split in ("train", "validation"))
    assert not {n for names in train.values() for n in names} & {n for names in validation.values() for n in names}


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_takes_the_tools_that_its_kind_names(kind):
    for question in of_kind(kind):
        used = {call.name for call in question.calls}
        assert "+".join(name for name in ("search", "query", "calculate") if name in used) == kind == question.kind
        assert question.text.endswith("?") and len(question.calls) == len(question.titles) + len(question.cells) + len(
            question.values
        )


@pytest.mark.parametrize("kind", ["search+query", "search+query+calculate", "query+calculate", "query"])
def test_what_the_tables_say_stands_in_no_article(kind):
    """So that no search makes up for a query."""
    world = make_mixed_world(200, 0, "train")
    for question in of_kind(kind):
        articles = " ".join(p.text for p in world.searcher.search([question.text], 20)[0])
        said = {int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", articles)}
        assert not {cell for cell in question.cells if cell not in YEARS and "SUM" not in str(question.calls)} & said


def test_the_name_of_the_middle_is_not_in_the_question():
    for question in of_kind("search+query") + of_kind("search+query+calculate"):
        sql = next(call.arguments["sql"] for call in question.calls if call.name == "query")
        assert re.search(r"= '([^']+)'", sql)[1] not in question.text


def test_golds_agree_with_the_world():
    mixed = make_mixed_world(200, 0, "train")
    for seed in range(40):
        question = make_question(mixed, random.Random(seed), ("search+query",))
        sql = question.calls[-1].arguments["sql"]
        subject, year = re.search(r"= '([^']+)' AND year = (\d+)", sql).groups()
        table = "visitors" if "visitors" in question.text else "profit" if "profit" in question.text else "revenue"
        names = mixed.world.names["town" if table == "visitors" else "company"]
        assert int(question.answer) == getattr(mixed, table)[names.index(subject), YEARS.index(int(year))]


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("1234", "1,234", True),
        ("1234", "1235", False),
        ("12.5", "$12.50", True),
        ("Ada Berg", "ada berg", True),
        ("Ada Berg", "Ada", False),
        ("Ada Berg", "", False),
    ],
)
def test_answers_are_compared_as_what_they_are(gold, answer, right):
    assert is_right(MixedQuestion("?", gold, "query", ()), answer) is right


# -- the task ----------------------------------------------------------------------------------------------------------


def test_gymnasium_and_our_own_checker_have_nothing_to_say():
    check_agent_env(MixedEnv(**SMALL), steps=80)


def make():
    """An episode with a question that is known: two articles, one cell, one calculation."""
    env = MixedEnv(**SMALL)
    env.reset(seed=0)
    mixed = env.mixed
    town, other = mixed.world.names["town"][:2]
    cell = int(mixed.visitors[0, 0])
    calls = (ToolCall("query", {"sql": f"SELECT visitors FROM visitors WHERE town = '{town}' AND year = 2015"}),)
    env.question = MixedQuestion(
        "?", str(cell + 1), "test", calls, frozenset({town, other}), frozenset({cell}), frozenset({Fraction(cell + 1)})
    )
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
    assert (
        info["progress"] == 1.0
        and reward == pytest.approx(1.0 + 0.05 - 0.3)
        and (terminated, truncated) == (True, False)
    )
    assert (info["success"], info["prediction"], info["gold"]) == (1.0, str(cell + 1), str(cell + 1))


@pytest.mark.parametrize(
    "action",
    [
        "<calculate>9**9**9</calculate>", "<query>DROP TABLE visitors</query>", "<query>ATTACH 'x' AS y</query>",
        "<sql>SELECT 1</sql>",
        "<query>WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c</query>",
        f"<search>{'x ' * 3000}</search>",
        "<calculate>" + "(" * 490 + "</calculate>", "<query>SELECT date('now')</query>",
    ],
)  # fmt: skip
def test_hostile_calls_cost_and_go_on(action):
    env, *_ = make()
    _, reward, terminated, _, info = env.step(action)
    assert reward == pytest.approx(-0.1) and not terminated and info["tool_faults"] == 0 and info["progress"] == 0.0


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_oracle_solves_everything(split):
    env, kinds = MixedEnv(split=split), set()
    for seed in range(200):
        episode = roll_out(env, ORACLE, seed)
        assert episode[-1]["success"] == 1.0 and episode[-2]["progress"] == 1.0, env.question
        assert sum(step["reward"] for step in episode) == pytest.approx(1.05)
        kinds.add(env.question.kind)
    assert kinds == set(KINDS)


def test_scripts_rank():
    means = {
        name: np.mean([roll_out(MixedEnv(), script, seed)[-1]["success"] for seed in range(150)])
        for name, script in MixedEnv.SCRIPTS.items()
    }
    assert means["random"] < 0.05 < means["scripted"] < 0.5 < means["oracle"] == 1.0


def test_splits_are_disjoint_and_large():
    texts = {}
    for split in ("train", "validation"):
        env = MixedEnv(split=split)
        texts[split] = [env.reset(seed=seed)[0] for seed in range(1000)]
        assert all(split_of(text) == split for text in texts[split]) and len(set(texts[split])) > 900
    assert not set(texts["train"]) & set(texts["validation"])


def test_only_the_kinds_that_are_asked_for():
    env = MixedEnv(kinds=["query", "search+query"], **SMALL)
    assert {env.reset(seed=seed)[1]["kind"] for seed in range(30)} == {"query", "search+query"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"split": "test"},
        {"kinds": []},
        {"kinds": "query"},
        {"kinds": ["sql"]},
        {"entities": 3},
        {"k": 0},
        {"max_turns": 0},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        MixedEnv(**arguments)


def test_pickled_in_the_middle_it_goes_on():
    env, town, _, cell = make()
    env.step(f"<search>{town}</search>")
    data = pickle.dumps(env)
    make_mixed_world.cache_clear()
    copy = pickle.loads(data)
    for action in (
        f"<query>{env.question.calls[0].arguments['sql']}</query>",
        f"<search>{town} river</search>",
        f"<answer>{cell}</answer>",
    ):
        assert env.step(action) == copy.step(action)


def test_vector_is_as_one_by_one():
    vector, alone = make_vector(num_envs=4, **SMALL), [MixedEnv(**SMALL) for _ in range(4)]
    observations, _ = vector.reset(seed=4)
    assert list(observations) == [env.reset(seed=4 + i)[0] for i, env in enumerate(alone)]
    for actions in (
        [env.format.write(next(ORACLE(env, random.Random(0)))) for env in alone],
        [f"<answer>{env.question.answer}</answer>" for env in alone],
    ):
        said = vector.step(actions)
        single = [env.step(action) for env, action in zip(alone, actions, strict=True)]
        assert [list(part) for part in said[:4]] == [[one[i] for one in single] for i in range(4)]
