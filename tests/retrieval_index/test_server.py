import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from serving import serving

import retrieval_index
from retrieval_index.batching import Batcher, SearcherFailed
from retrieval_index.client import RemoteSearcher
from retrieval_index.corpus import Passage
from retrieval_index.wire import Limits

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

QUERIES = ["castle orchestra", "the river", "queen railway comet", "", "unheardof", "Brücke ☃ \u2028", "town", "film"]
WORDS = ("river", "town", "film", "band", "author", "bridge", "castle")


class Gated:
    """A real index that waits at a gate, notes what it was asked, and raises where a query says so."""

    def __init__(self, index):
        self.index, self.corpus = index, index.corpus
        self.calls, self.gate = [], threading.Event()
        self.gate.set()

    def search(self, queries, k):
        self.calls.append((list(queries), k))
        assert self.gate.wait(60)
        if any("poison" in query for query in queries):
            raise RuntimeError("this query is poison")
        return self.index.search(queries, k)


@contextmanager
def serving_index(searcher, limits=None, **options):
    """A real server in a thread; yields an `httpx.Client` for it, whose `base_url` says where it is."""
    from retrieval_index.server import CONNECTION_LIMITS, create_app

    served = serving(create_app(searcher, limits), **CONNECTION_LIMITS | options)
    with served as (url, server), httpx.Client(base_url=url, timeout=60) as client:
        client.shut_down = lambda: setattr(server, "should_exit", True)
        yield client


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def retrieve(client, queries, **fields):
    return client.post("/retrieve", json={"queries": queries, **fields})


def in_background(client, *all_queries, **fields):
    """Post each list of queries in a thread of its own; they are in the queue when this returns."""
    before = metric(client, "retrieval_waiting_queries")  # with those that are being searched
    pool = ThreadPoolExecutor(len(all_queries))
    answers = [pool.submit(retrieve, client, queries, **fields) for queries in all_queries]
    wait_until(lambda: metric(client, "retrieval_waiting_queries") == before + sum(map(len, all_queries)))
    return answers


def hold_up(gated, client):
    """Post a query whose search does not end before the gate is opened."""
    gated.gate.clear()
    first = ThreadPoolExecutor(1).submit(retrieve, client, ["castle"])
    wait_until(lambda: gated.calls)
    return first


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return float(dict(line.rsplit(" ", 1) for line in lines).get(name, 0))


def ranking(found):
    return [[(p.id, p.title, p.text, p.score) for p in passages] for passages in found]


@pytest.fixture(scope="module")
def index(passages):
    return retrieval_index.build(passages)


@pytest.fixture(scope="module")
def client(index):
    with serving_index(index, Limits(topk=50, queries=64, query_chars=200, body_bytes=50_000, passages=1000)) as client:
        yield client


@pytest.fixture
def gated(index):
    return Gated(index)


@pytest.fixture
def gated_client(gated):
    with serving_index(gated, Limits(queries=4, waiting=5)) as client:
        yield client
        gated.gate.set()


def test_the_same_results_as_in_process(client, index):
    remote = RemoteSearcher(str(client.base_url), timeout=60)
    many = QUERIES * 20  # several requests
    assert ranking(remote.search(many, 7)) == ranking(index.search(many, 7))
    assert remote.search(["unheardof"], 3) == [[]]


def test_the_format_of_search_r1(client, index):
    best = index.search(["castle orchestra"], 3)[0]
    documents = [{"id": p.id, "contents": f'"{p.title}"\n{p.text}', "title": p.title} for p in best]
    scored = [{"document": document, "score": p.score} for document, p in zip(documents, best, strict=True)]
    assert retrieve(client, ["castle orchestra"], topk=3, return_scores=True).json() == {"result": [scored]}
    assert retrieve(client, ["castle orchestra"], topk=3, return_scores=False).json() == {"result": [documents]}
    assert retrieve(client, ["castle orchestra"], topk=None).json() == {"result": [documents]}
    assert retrieve(client, ["castle orchestra"]).json() == {"result": [documents]}
    assert retrieve(client, []).json() == {"result": []}  # Search-R1 asks so when no episode searches


def test_the_default_topk_is_within_the_limit(index):
    with serving_index(index, Limits(topk=2, passages=4)) as client:
        assert [len(found) for found in retrieve(client, ["castle", "river"]).json()["result"]] == [2, 2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"queries": ["a"] * 65}, "65 in one request, 64 at most"),
        ({"queries": ["a" * 201]}, "201 characters, 200 at most"),
        ({"queries": ["a"] * 30, "topk": 50}, "1500 passages, 1000 at most"),
        ({"queries": ["a"], "topk": 51}, "between 1 and 50, got 51"),
        ({"queries": ["a"], "topk": 0}, "between 1 and 50, got 0"),
        ({"queries": ["a"], "topk": "3"}, "topk"),
        ({"queries": "a"}, "queries"),
        ({"queries": ["a", 1]}, "queries.1"),
        ({"topk": 3}, "queries: Field required"),
        ({"queries": ["a"], "k": 3}, "k: Extra inputs are not permitted (fields: queries, topk, return_scores)"),
        ([], "body"),
        *((body, "JSON") for body in (b"", b"{", b"\xff", b'{"queries": ["\\ud800"]}', b"[" * 40_000)),
    ],
)
def test_requests_that_are_not_understood(client, body, message):
    response = client.post("/retrieve", **{"content" if isinstance(body, bytes) else "json": body})
    assert response.status_code == 422
    assert message in response.json()["detail"]


@pytest.mark.parametrize("size", [50_001, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(client, size, chunked):
    def chunks():
        for start in range(0, size, 10_000):
            yield b" " * min(10_000, size - start)

    response = client.post("/retrieve", content=chunks() if chunked else b" " * size)
    assert response.status_code == 413
    assert "50,000 bytes" in response.json()["detail"]


def play(gated, *arrivals):
    """Requests of (queries, k) that arrive while the first is searched; the order in which they are answered, each with
    the number of searches that had been made."""

    async def stays():
        return False

    async def ask(number, queries, k):
        try:
            found = await batcher.search(queries, k, stays)
            assert ranking(found) == ranking(gated.index.search(queries, k))
        except SearcherFailed:
            assert "poison" in queries
        answered.append((number, len(gated.calls)))

    async def all_of_them():
        nonlocal batcher
        batcher = Batcher(gated, 10_000)
        gated.gate.clear()
        tasks = [asyncio.create_task(ask(-1, ["castle"], 1))]
        while not gated.calls:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(ask(number, *asked)) for number, asked in enumerate(arrivals)]
        await asyncio.sleep(0)
        gated.gate.set()
        await asyncio.gather(*tasks)
        assert batcher.waiting == 0
        await batcher.close()

    batcher, answered = None, []
    asyncio.run(all_of_them())
    return answered


def test_what_waits_is_searched_together_if_its_k_is_equal_in_batches_that_are_bounded_and_shared(gated):
    play(gated, (["river"], 2), (["town", "film"], 5), (["comet"], 2))
    assert gated.calls == [(["castle"], 1), (["river", "comet"], 2), (["town", "film"], 5)]
    gated.calls.clear()
    sizes = 200, 100, 90, 56, 300, 0, 1
    play(gated, *[([f"castle {WORDS[number]}"] * size, 2) for number, size in enumerate(sizes)])
    assert sum(len(queries) for queries, _ in gated.calls) == 1 + sum(sizes)
    assert max(len(queries) for queries, _ in gated.calls) <= 256
    assert len(set(gated.calls[1][0])) >= 3 and len(gated.calls) <= 8
    gated.calls.clear()
    play(gated, (["river " * 1000] * 40, 2))  # a search of long queries takes fewer
    assert max(len(queries) for queries, _ in gated.calls) <= 12


@pytest.mark.parametrize(("large", "k"), [(1, 100), (3, 3)])
def test_a_small_request_does_not_wait_for_large_ones(gated, large, k):
    answered = play(gated, *[([f"town {WORDS[i % 7]}"] * 150, 100) for i in range(large)], (["river"], k))
    assert [number for number, _ in answered[:2]] == [-1, large]  # the small one came last and is answered first
    assert answered[1][1] <= 4  # after the one under way, and two of large ones
    assert max(len(queries) for queries, asked in gated.calls if asked == 100) <= 25


def test_a_search_that_fails_ends_its_request_and_no_other(gated):
    answered = play(gated, (["poison"] * 600, 3), (["river"] * 600, 3))
    assert [number for number, _ in answered] == [-1, 0, 1]
    assert sum(query == "poison" for queries, _ in gated.calls for query in queries) < 600


HEAD = b"POST /retrieve HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


def connect(client):
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def test_a_body_has_to_arrive_in_time(index, monkeypatch):
    from retrieval_index import server

    monkeypatch.setattr(server, "ARRIVAL", 1.0)
    with serving_index(index) as client, connect(client) as one:
        one.sendall(HEAD + b'{"quer')
        assert one.recv(12) == b"HTTP/1.1 408"
        assert retrieve(client, ["castle"]).status_code == 200


def test_more_connections_than_there_may_be_are_refused_at_once(index):
    with serving_index(index, limit_concurrency=3) as client:
        half_open = [connect(client) for _ in range(2)]
        for one in half_open:
            one.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
            assert one.recv(12) == b"HTTP/1.1 100"  # it is being read
        assert retrieve(client, ["castle"]).status_code == 503
        for one in half_open:
            one.close()
        wait_until(lambda: retrieve(client, ["castle"]).status_code == 200)


def test_a_full_queue(gated, gated_client):
    first = hold_up(gated, gated_client)
    waiting = in_background(gated_client, ["river", "comet"], ["town"])
    refused = retrieve(gated_client, ["film", "film"])
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert "4 queries wait already, 5 at most" in refused.json()["detail"]
    gated.gate.set()
    assert [answer.result().status_code for answer in [first, *waiting]] == [200] * 3
    assert waiting[0].result().json() == retrieve(gated_client, ["river", "comet"]).json()
    assert retrieve(gated_client, ["film", "film"]).status_code == 200


def test_a_client_that_left_is_not_searched_for(gated, gated_client):
    first = hold_up(gated, gated_client)
    with pytest.raises(httpx.ReadTimeout):
        gated_client.post("/retrieve", json={"queries": ["river"]}, timeout=0.2)
    stays = in_background(gated_client, ["comet"])[0]
    gated.gate.set()
    assert first.result().status_code == stays.result().status_code == 200
    assert [queries for queries, _ in gated.calls] == [["castle"], ["comet"]]
    assert metric(gated_client, 'retrieval_requests_total{status="499"}') == 1


def test_shutting_down_answers_what_waits(gated):
    with serving_index(gated) as client:
        first = hold_up(gated, client)
        waiting = in_background(client, ["river"], ["comet"], topk=2)
        client.shut_down()
        with pytest.raises(ConnectionRefusedError):
            wait_until(lambda: connect(client).close())
        gated.gate.set()
        assert [answer.result().status_code for answer in [first, *waiting]] == [200] * 3
        assert waiting[0].result().json()["result"][0]


def test_what_has_no_corpus_can_be_served():
    """A searcher of another server: it can search, and knows nothing else."""
    other = SimpleNamespace(search=lambda queries, k: [[Passage("1", "Arizona", "a state", 1.0)] for _ in queries])
    for searcher in (other, retrieval_index.ShardedSearcher([other, other])):
        with serving_index(searcher) as client:
            health = client.get("/health").json()
            assert (health["status"], health["passages"], health["fingerprint"]) == ("ok", None, None)


def test_health_and_metrics(index):
    with serving_index(index) as client:
        health = client.get("/health").json()
        assert health["status"] == "ok"
        assert (health["passages"], health["backend"]) == (200, "bm25")
        assert health["fingerprint"] == index.corpus.fingerprint
        assert health["limits"]["queries"] == Limits().queries
        retrieve(client, ["castle", "river"])
        retrieve(client, "castle")
        assert metric(client, 'retrieval_requests_total{status="200"}') == 1
        assert metric(client, 'retrieval_requests_total{status="422"}') == 1
        assert metric(client, "retrieval_queries_total") == 2
        assert metric(client, "retrieval_request_seconds_count") == 2
        assert metric(client, "retrieval_waiting_queries") == 0


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"topk": 0}, "topk must be at least 1, got 0"), ({"queries": 100, "waiting": 99}, "waiting")],
)
def test_limits_that_make_no_sense(limits, message):
    with pytest.raises(ValueError, match=message):
        Limits(**limits)


def test_serve_listens_on_this_machine_alone(index, monkeypatch):
    from retrieval_index import server

    asked = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.update(options))
    server.serve(index)
    assert (asked["host"], asked["port"]) == ("127.0.0.1", 8000)
    assert asked["limit_concurrency"] == 512 and asked["timeout_graceful_shutdown"]


def test_a_searcher_that_gives_nonsense_is_an_error_and_no_hang(index):
    answers = {"first": None, "second": iter(())}
    with serving_index(SimpleNamespace(corpus=index.corpus, search=lambda queries, k: answers[queries[0]])) as client:
        for query in answers:
            answer = client.post("/retrieve", json={"queries": [query]})
            assert answer.status_code == 500
            assert "TypeError" in answer.json()["detail"]
