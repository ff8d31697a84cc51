"""Questions about a database: the database that can only be read, the questions, the task."""

import random
import resource
import sqlite3
from collections import Counter

import pytest

from agent_envs.generators.instances import split_of
from agent_envs.generators.sql import questions
from agent_envs.generators.sql.sqlite import Database, QueryError, QueryResult
from agent_envs.generators.sql.templates import TEMPLATES
from agent_envs.tasks.sql import SQLEnv


@pytest.fixture
def database():
    pets = "CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT NOT NULL, weight REAL)"
    rows = {"pets": [(1, "Rex", 12.5), (2, "Tom", None), (3, "Ann_e", 4.0)]}
    rows["walks"] = [(1, "2024-02-28"), (1, "2024-03-01")]
    return Database(f"{pets}; CREATE TABLE walks (pet INTEGER, day DATE);", rows)


def copies(levels):
    tables = "".join(f", a{i + 1} AS (SELECT p.x FROM a{i} p, a{i} q)" for i in range(levels))
    return f"WITH a0 AS (SELECT 1 x){tables} SELECT x FROM a{levels}"


def nested(levels, column="x + x"):
    sql = "SELECT id AS x FROM pets"
    for _ in range(levels):
        sql = f"SELECT {column} AS x FROM ({sql})"
    return sql


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
WRITES = [
    "INSERT INTO pets VALUES (4, 'New', 1)", "DELETE FROM pets", "UPDATE pets SET name = 'x'", "DROP TABLE pets",
    "ALTER TABLE pets RENAME TO x", "CREATE TABLE x (a)", "CREATE TEMP TABLE x (a)", "CREATE VIEW v AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON pets BEGIN DELETE FROM walks; END", "CREATE INDEX i ON pets (name)",
    "WITH x AS (SELECT 1) DELETE FROM pets", "INSERT INTO pets SELECT * FROM pets RETURNING *", "ATTACH 'x.db' AS y",
    "DETACH main", "VACUUM INTO '/tmp/x.db'", "PRAGMA query_only = OFF", "SELECT * FROM pragma_table_info('pets')",
    "BEGIN", "COMMIT", "SAVEPOINT x", "ANALYZE", "REINDEX pets", "EXPLAIN DELETE FROM pets",
]  # fmt: skip
MISTAKES = [
    "", "-- nothing", "SELECT", "SELECT nothing FROM pets", "SELECT * FROM dogs", "SELECT 1; DELETE FROM pets", "SELEC 1",
    "SELECT load_extension('x')", "SELECT readfile('/etc/passwd')", "SELECT random()", "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)", "SELECT hex(name) FROM pets", "SELECT current_timestamp", "SELECT date()",
    "SELECT date('now')", "SELECT date('n' || 'ow')", "SELECT date(x'6e6f77')", "SELECT julianday('NOW ')",
    "SELECT datetime(CAST(x'6e6f7700' AS TEXT))", "SELECT datetime('2024-01-01', 'localtime')", "SELECT strftime('%s')",
    "SELECT 'x' LIKE 'y' ESCAPE 'z'", "SELECT name GLOB 'R*' FROM pets", "SELECT \ud800", "SELECT '\x00'", "SELECT ?",
    "(" * 3000, "SELECT " + "(" * 500 + "1" + ")" * 500, "SELECT 1" + " + 1" * 500, "SELECT " + "NOT " * 900 + "1",
    "SELECT " + "1," * 200 + "1", "SELECT '" + "a" * 10_000 + "'",
]  # fmt: skip
BOMBS = [
    ENDLESS, ENDLESS.replace("ALL ", ""),
    "WITH RECURSIVE c(x) AS (SELECT 'aaaa' UNION ALL SELECT x || x FROM c) SELECT COUNT(*) FROM c",
    "SELECT COUNT(*) FROM " + ", ".join(f"pets p{i}" for i in range(40)),
    ENDLESS + " WHERE x LIKE '%1%1%1%1%1%1%1%1%1%x'",
    f"{ENDLESS} WHERE '{'a' * 900}' || x LIKE '{'%a' * 400}b'",
    copies(40), "WITH a AS (" * 25 + "SELECT 1 x" + ") SELECT p.x FROM a p, a q" * 25,
    nested(8, "x+x+x+x+x+x+x+x+x+x"), nested(24, "(SELECT x) + (SELECT x)"),
]  # fmt: skip


@pytest.mark.parametrize("sql", WRITES + MISTAKES + BOMBS)
def test_hostile_queries_are_refused_in_words_and_change_nothing(database, sql):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(QueryError) as error:
        database.query(sql)
    assert 0 < len(str(error.value)) <= 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # KiB
    assert database.query("SELECT * FROM pets").rows == ((1, "Rex", 12.5), (2, "Tom", None), (3, "Ann_e", 4.0))


def test_a_stopped_query_stops_at_the_same_place_every_time(database):
    """The bound is a count of instructions: just below it a query always ends, just above it never."""
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < {}) SELECT MAX(x) FROM c"
    for _ in range(3):
        assert database.query(sql.format(40_000)).rows == ((40_000,),)
        with pytest.raises(QueryError, match="too long"):
            database.query(sql.format(400_000))


ROWS = {
    "SELECT COUNT(*), AVG(weight) FROM pets": ((3, 8.25),),
    "SELECT name FROM pets JOIN walks ON pet = id GROUP BY id HAVING COUNT(*) = 2": (("Rex",),),
    "SELECT julianday('2024-03-01') - julianday('2024-02-28')": ((2.0,),),
    "SELECT strftime('%Y-%m', day) FROM walks ORDER BY 1": (("2024-02",), ("2024-03",)),
    "SELECT date('2024-02-28', '+1 month')": (("2024-03-28",),),
    "SELECT name, RANK() OVER (ORDER BY weight DESC) FROM pets WHERE weight > 0": (("Rex", 1), ("Ann_e", 2)),
    "SELECT name FROM pets WHERE name LIKE 'r%X' OR name LIKE '%n_e'": (("Rex",), ("Ann_e",)),
    "WITH a AS (SELECT id FROM pets), b AS (SELECT MAX(id) AS m FROM a) SELECT m FROM b": ((3,),),
    "SELECT name FROM sqlite_master ORDER BY 1": (("pets",), ("walks",)),
    "SELECT 'it''s; -- fine' AS a": (("it's; -- fine",),),
    "SELECT weight FROM pets WHERE name = 'Tom'": ((None,),),
    "SELECT 1;": ((1,),),
}


def test_what_may_be_asked(database):
    assert {sql: database.query(sql).rows for sql in ROWS} == ROWS


@pytest.mark.parametrize(
    "pattern", ["%", "", "a%", "%a", "_", "a_c", "%b%", "%%c", "a%c%", "_%_", "ab", "%ab%ab%", "ÄB"]
)
def test_like_is_that_of_sqlite(database, pattern):
    plain = sqlite3.connect(":memory:")
    for text in ("", "a", "abc", "ABC", "aXc", "abab", "xababab", "a%c", "cab", "äb"):
        (expected,) = plain.execute("SELECT ? LIKE ?", (text, pattern)).fetchone()
        if text.isascii() and pattern.isascii():  # SQLite folds the case of ASCII alone
            assert database.query(f"SELECT '{text}' LIKE '{pattern}'").rows == ((expected,),)
    assert database.query("SELECT NULL LIKE 'a', 'a' LIKE NULL").rows == ((None, None),)


def test_results_name_their_tables_and_are_cut(database):
    found = database.query("SELECT p.name FROM pets p, walks w, walks v, walks u, walks t, walks s")
    assert found.tables == {"pets", "walks"} and len(found.rows) == 50 and found.more and "first 50 rows" in str(found)
    assert not Database("CREATE TABLE t (x)", {"t": [(x,) for x in range(50)]}).query("SELECT x FROM t").more
    with pytest.raises(QueryError, match="LIKE takes too long"):
        days = "walks u, walks v, walks w WHERE u.day || v.day || w.day"
        database.query(f"SELECT 1 FROM {days} || '{'a' * 900}' LIKE '%{'a' * 450}b'")
    assert str(database.query("SELECT name, weight FROM pets WHERE id < 3")) == "name | weight\nRex | 12.5\nTom | NULL"
    assert str(database.query("SELECT id FROM pets WHERE id > 9")) == "id\n(no rows)"
    assert len(str(database.query(f"SELECT '{'a' * 900}' AS a"))) < 300
    assert database.query("SELECT 1").tables == frozenset()


@pytest.mark.parametrize("schema", questions.SCHEMAS)
def test_every_template_makes_questions(schema):
    for level, kind, texts, sql in TEMPLATES[schema]:
        fit = 0
        for number in range(16):
            said, meant = questions._draw_slot_values(texts + sql, schema, number, random.Random(number))
            found = questions.open_database(schema, number).query(questions._fill_slots(meant, sql))
            fit += questions._is_askable(kind, tuple(row[0] for row in found.rows))
            assert found.tables <= set(questions.rows_of(schema, number))
            assert "{" not in questions._fill_slots(said, texts) + questions._fill_slots(meant, sql)
        assert fit >= 2, (level, texts)


@pytest.mark.parametrize("schema", questions.SCHEMAS)
def test_databases_hold_together(schema):
    for number in range(6):
        plain = sqlite3.connect(":memory:")
        plain.executescript(questions.SCHEMAS[schema].script)
        for table, rows in questions.rows_of(schema, number).items():
            plain.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        assert plain.execute("PRAGMA foreign_key_check").fetchall() == []
    assert questions.rows_of(schema, 1) != questions.rows_of(schema, 2) and "-- rows:" in questions.describe(schema, 1)


def template(schema, part):
    return next(sql for _, _, texts, sql in TEMPLATES[schema] if part in texts)


def test_golds_agree_with_counting_by_hand():
    for number in range(6):
        shop, league = questions.rows_of("shop", number), questions.rows_of("league", number)
        prices = {product[0]: product[3] for product in shop["products"]}
        delivered = {order[0]: order[1] for order in shop["orders"] if order[3] == "delivered"}
        spent = Counter()
        for order, product, quantity in shop["order_items"]:
            if order in delivered:
                spent[delivered[order]] += quantity * prices[product]
        city = shop["customers"][0][2]
        inhabitants = {c[0]: c[1] for c in shop["customers"] if c[2] == city}
        if most := max(spent[c] for c in inhabitants):
            sql = template("shop", "has spent the most").replace("{customers.city}", f"'{city}'")
            best = {name for c, name in inhabitants.items() if spent[c] == most}
            assert {row[0] for row in questions.open_database("shop", number).query(sql).rows} == best
        id, name = league["teams"][0][:2]
        played = [match[2:] for match in league["matches"] if id in match[2:4]]
        scored = [(h, a) if home == id else (a, h) for home, _, h, a in played]
        points = sum(3 * (own > other) + (own == other) for own, other in scored)
        sql = template("league", "How many points").replace("{teams.name}", f"'{name}'")
        assert questions.open_database("league", number).query(sql).rows == ((points,),)
        assert len(league["goals"]) == sum(match[4] + match[5] for match in league["matches"])


def question(kind, *golds):
    return questions.SQLQuestion("?", "shop", 0, kind, "", golds, frozenset({"products", "orders"}))


ANSWERS = [  # kind, golds, right answers, wrong ones
    ("number", (1234,), ["1,234", "$1234.0"], ["1235"]),
    ("number", (3,), [], ["three"]),
    ("average", (2 / 3,), ["0.67", "0.6667"], ["0.66"]),
    ("average", (0.125,), ["0.13", "0.12"], ["0.14"]),
    ("average", (54.175,), ["54.18", "54.17"], ["54.19"]),
    ("average", (5.0,), ["5"], ["5%"]),
    ("percentage", (200 / 3,), ["66.67", " 66.67%"], ["66.6%"]),
    ("name", ("Ada Berg",), [" ada  BERG. "], ["Ada", ""]),
    ("names", ("Ada", "Bo"), ["Bo, Ada", "Bo and Ada", "bo;ada\n"], ["Ada", "Ada, Bo, Cy", "Ada, Ada, Bo"]),
    ("names", ("Ada", "Bo", "Cy"), ["Ada, Bo, and Cy"], []),
    ("names", ("Ada",), [], ["", ",,"]),
]


@pytest.mark.parametrize(("kind", "golds", "right", "wrong"), ANSWERS)
def test_answers_are_compared_as_what_they_are(kind, golds, right, wrong):
    assert [answer for answer in right + wrong if questions.is_right(question(kind, *golds), answer)] == right


def test_a_result_matches_if_one_of_its_columns_does():
    asked = question("names", "Ada", "Bo")
    assert questions.matches(asked, QueryResult(("n", "c"), (("Bo", 1), ("Ada", 2)), frozenset()))
    assert not questions.matches(asked, QueryResult(("n",), (("Bo",), ("Ada",), ("Cy",)), frozenset()))
    assert not questions.matches(asked, QueryResult(("n",), (), frozenset()))
    assert not questions.matches(asked, QueryResult(("n",), (("Bo",), ("Ada",)), frozenset(), more=True))
    assert questions.matches(question("average", 2 / 3), QueryResult(("a",), ((0.67,),), frozenset()))
    assert questions.matches(question("number", 3), QueryResult(("a", "b"), ((None, 3.0),), frozenset()))


def make(**arguments):
    """An episode with a question that is known."""
    env = SQLEnv(**arguments)
    env.reset(seed=0)
    sql = "SELECT COUNT(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE city = 'x' OR 1"
    golds = (len(questions.rows_of("shop", 0)["orders"]),)
    tables = frozenset({"orders", "customers"})
    env.question = questions.SQLQuestion("How many orders?", "shop", 0, "number", sql, golds, tables)
    env._read, env._matched = set(), False
    return env


def test_rewards_to_the_number():
    env = make(max_turns=7)
    orders = env.question.golds[0]
    said, reward, *_ = env.step("<schema></schema>")
    assert "CREATE TABLE order_items" in said and f"orders: {orders}" in said and reward == 0.0
    assert env.step("<query>SELECT 1 FROM customers</query>")[1] == pytest.approx(0.3 * 0.25)  # one of two tables
    assert env.step("<query>SELECT 1 FROM products</query>")[1] == 0.0  # one that the gold query does not read
    _, reward, *_, info = env.step("<query>DELETE FROM orders</query>")
    assert reward == pytest.approx(-0.1) and info["progress"] == 0.25  # what an earlier turn has read still counts
    said, reward, *_ = env.step("<query>SELECT COUNT(*) AS n FROM orders</query>")
    assert f"n\n{orders}" in said and reward == pytest.approx(0.3 * 0.75)
    assert env.step("<query>SELECT 1 FROM products</query>")[4]["progress"] == 1.0  # what was found stays found
    _, reward, terminated, truncated, info = env.step(f"<answer>{orders}</answer>")
    assert reward == pytest.approx(1.0 + 0.05 - 0.3) and (terminated, truncated) == (True, False)
    assert info["success"] == 1.0 and info["golds"] == [str(orders)] and info["prediction"] == str(orders)


def test_splits_share_neither_questions_nor_databases():
    seen = {}
    for split in ("train", "validation"):
        env = SQLEnv(split=split, difficulty="hard")
        questions = [(env.reset(seed=seed), env.question)[1] for seed in range(40)]
        assert all(split_of(q.text) == split for q in questions)
        seen[split] = {q.text for q in questions}, {(q.schema, q.number) for q in questions}
        assert len({(q.text, q.number) for q in questions}) > 36
    assert not seen["train"][0] & seen["validation"][0] and not seen["train"][1] & seen["validation"][1]
