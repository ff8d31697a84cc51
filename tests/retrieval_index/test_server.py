import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import retrieval_index
from retrieval_index.batching import Batcher
from retrieval_index.client import RemoteSearcher
from retrieval_index.corpus import Passage
from retrieval_index.wire import Limits

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

QUERIES = [
    "castle orchestra",
    "the river",
    "queen railway comet",
    "",
    "unheardof",
    "Brücke ☃ \u2028",
    *"town film".split(),
]


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
def serving(searcher, limits=None, **options):
    """A real server in a thread; yields an `httpx.Client` for it, whose `base_url` says where it is."""
    from retrieval_index.server import connection_options, create_app

    options = {**connection_options(), "timeout_graceful_shutdown": 60, **options}
    config = uvicorn.Config(create_app(searcher, limits), port=0, log_level="critical", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            client.server = server
            client.shut_down = lambda: setattr(server, "should_exit", True)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def retrieve(client, queries, **fields):
    return client.post("/retrieve", json={"queries": queries, **fields})


def in_background(client, *all_queries, **fields):
    """Post each list of queries in a thread of its own; they are in the queue when this returns."""
    before = metric(client, "retrieval_waiting_queries")
    pool = ThreadPoolExecutor(len(all_queries))
    answers = [pool.submit(retrieve, client, queries, **fields) for queries in all_queries]
    wait_until(lambda: metric(client, "retrieval_waiting_queries") == before + sum(map(len, all_queries)))
    return answers


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
    with serving(index, Limits(topk=50, queries=64, query_chars=200, body_bytes=50_000, waiting=8192)) as client:
        yield client


@pytest.fixture
def gated(index):
    return Gated(index)


@pytest.fixture
def gated_client(gated):
    with serving(gated, Limits(queries=4, waiting=4)) as client:
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


def test_many_threads_at_once(client, index):
    def ask(number):
        queries, k = [QUERIES[(number + shift) % len(QUERIES)] for shift in range(1 + number % 5)], 1 + number % 7
        return ranking(remote.search(queries, k)) == ranking(index.search(queries, k))

    remote = RemoteSearcher(str(client.base_url), timeout=60)
    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(ask, range(256)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"queries": ["a"] * 65}, "65 in one request, 64 at most"),
        ({"queries": ["a" * 201]}, "201 characters, 200 at most"),
        ({"queries": ["a"], "topk": 51}, "between 1 and 50, got 51"),
        ({"queries": ["a"], "topk": 0}, "between 1 and 50, got 0"),
        ({"queries": ["a"], "topk": "3"}, "topk"),
        ({"queries": "a"}, "queries"),
        ({"queries": ["a", 1]}, "queries.1"),
        ({"topk": 3}, "queries: Field required"),
        ({"queries": ["a"], "k": 3}, "k: Extra inputs are not permitted (fields: queries, topk, return_scores)"),
        ([], "body"),
    ],
)
def test_requests_that_are_not_understood(client, body, message):
    response = client.post("/retrieve", json=body)
    assert response.status_code == 422
    assert message in response.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"queries": ["\\ud800"]}', b"[" * 40_000])
def test_bodies_that_are_not_json(client, body):
    assert client.post("/retrieve", content=body).status_code == 422


@pytest.mark.parametrize("size", [50_001, 5_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(client, size, chunked):
    def chunks():
        for start in range(0, size, 10_000):
            yield b" " * min(10_000, size - start)

    response = client.post("/retrieve", content=chunks() if chunked else b" " * size)
    assert response.status_code == 413
    assert "50,000 bytes" in response.json()["detail"]


def test_a_body_that_never_ends(client):
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(b"POST /retrieve HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(OSError):  # the server hangs up
            for _ in range(20_000):
                connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")


def test_what_waits_is_searched_together(gated, gated_client):
    gated.gate.clear()
    first = ThreadPoolExecutor(1).submit(retrieve, gated_client, ["castle"])
    wait_until(lambda: gated.calls)
    same = in_background(gated_client, ["river"], ["comet"], topk=2)
    other = in_background(gated_client, ["town", "film"], topk=5)
    gated.gate.set()
    assert first.result().json()["result"][0]
    assert [answer.result().status_code for answer in same + other] == [200] * 3
    assert len(other[0].result().json()["result"][1]) == 5
    assert sorted(map(sorted, (queries for queries, _ in gated.calls))) == [
        ["castle"],
        ["comet", "river"],
        ["film", "town"],
    ]
    assert [k for _, k in gated.calls] == [3, 2, 5]
    text = gated_client.get("/metrics").text
    assert 'retrieval_batch_queries_bucket{le="1.0"} 1.0' in text
    assert 'retrieval_batch_queries_bucket{le="2.0"} 3.0' in text


def test_batches_are_bounded(gated, index):
    async def stays():
        return False

    async def ask():
        batcher = Batcher(gated, waiting=1000)
        answers = [asyncio.create_task(batcher.search(queries, 2, stays)) for queries in asked]
        await asyncio.sleep(0)
        await batcher.close()
        return await asyncio.wait_for(asyncio.gather(*answers), 60)

    asked = [[f"castle {WORDS[number]}"] * size for number, size in enumerate((200, 100, 90, 56, 300, 0, 1))]
    assert list(map(ranking, asyncio.run(ask()))) == [ranking(index.search(queries, 2)) for queries in asked]
    assert [len(queries) for queries, _ in gated.calls] == [256, 256, 235]  # 747 queries in all
    assert [sum(query in asked[i] for query in gated.calls[0][0]) for i in (0, 1, 2, 3, 4, 6)] == [51] * 5 + [1]


def play(gated, *arrivals, waiting=10_000):
    """Requests of (queries, k) that arrive while the first is searched; the order in which they are answered, each with
    the number of searches that had been made."""

    async def stays():
        return False

    async def ask(number, queries, k):
        found = await batcher.search(queries, k, stays)
        assert ranking(found) == ranking(gated.index.search(queries, k))
        answered.append((number, len(gated.calls)))

    async def all_of_them():
        nonlocal batcher
        batcher = Batcher(gated, waiting)
        gated.gate.clear()
        tasks = [asyncio.create_task(ask(-1, ["castle"], 1))]
        while not gated.calls:
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(ask(number, *asked)) for number, asked in enumerate(arrivals)]
        await asyncio.sleep(0)
        gated.gate.set()
        await asyncio.gather(*tasks)
        await batcher.close()

    batcher, answered = None, []
    asyncio.run(all_of_them())
    return answered


@pytest.mark.parametrize("k", [100, 3])
@pytest.mark.parametrize("large", [1, 2, 8])
def test_a_small_request_does_not_wait_for_large_ones(gated, large, k):
    answered = play(gated, *[([f"town {WORDS[i % 7]}"] * 150, 100) for i in range(large)], (["river"], k))
    assert [number for number, _ in answered[:2]] == [-1, large]  # the small one came last and is answered first
    assert answered[1][1] <= 4  # by the next search, or the one after it; and one more has begun
    assert max(len(queries) for queries, asked in gated.calls if asked == 100) <= 26


def test_a_search_of_long_queries_takes_fewer(gated):
    play(gated, (["river " * 1000] * 40, 2))
    assert max(len(queries) for queries, _ in gated.calls) <= 11


def test_a_search_that_fails_ends_its_request_and_no_other(gated):
    async def stays():
        return False

    async def ask():
        batcher = Batcher(gated, 10_000)
        asked = [["poison"] * 600, ["river"] * 600]
        answers = await asyncio.gather(*(batcher.search(q, 3, stays) for q in asked), return_exceptions=True)
        assert batcher.waiting == batcher._work == 0
        await batcher.close()
        return answers

    failed, found = asyncio.run(ask())
    assert "poison" in str(failed) and len(found) == 600
    assert sum(query == "poison" for queries, _ in gated.calls for query in queries) < 600


def test_bounds_by_work(gated):
    with serving(gated, Limits(passages=40)) as client:
        refused = retrieve(client, ["river"] * 5, topk=10)
        assert refused.status_code == 422 and "50 passages, 40 at most" in refused.json()["detail"]
        gated.gate.clear()
        first = ThreadPoolExecutor(1).submit(retrieve, client, ["castle"])
        wait_until(lambda: gated.calls)
        waiting = in_background(client, *[["river"] * 4] * 4, topk=10)
        full = retrieve(client, ["town"], topk=1)
        assert full.status_code == 429 and "160 passages are asked for already" in full.json()["detail"]
        gated.gate.set()
        assert [answer.result().status_code for answer in [first, *waiting]] == [200] * 5
        assert retrieve(client, ["town"], topk=1).status_code == 200


HEAD = b"POST /retrieve HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


def connect(client):
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def test_connections_that_ask_for_nothing_make_room(index):
    """Half-open requests, heads without an end and silence, three times as many as there may be connections."""
    from retrieval_index.connections import guarded_protocol

    with serving(index, http=guarded_protocol(8)) as client:
        sockets = [connect(client) for _ in range(24)]
        for i, one in enumerate(sockets):
            with contextlib.suppress(OSError):
                one.sendall((HEAD, HEAD[:30], b"")[i % 3])
            assert retrieve(client, ["castle"]).status_code == 200
        wait_until(lambda: len(client.server.server_state.connections) <= 8)
        assert retrieve(client, ["castle"]).status_code == 200
        for one in sockets:
            one.close()


@pytest.mark.parametrize("start", [b"", HEAD[:30], HEAD, HEAD + b'{"quer'])
@pytest.mark.parametrize("before", [0, 1])
def test_a_request_has_to_arrive_in_time(index, monkeypatch, start, before):
    """Also where a byte comes now and then, and after a request that did arrive."""
    from retrieval_index import connections

    monkeypatch.setattr(connections, "READ", 0.3)
    body = b'{"queries": ["castle"]}'
    whole = HEAD.replace(b"100", str(len(body)).encode()) + body
    with serving(index, timeout_keep_alive=1) as client, connect(client) as one:
        one.sendall(whole * before)
        one.sendall(start)
        received, closed = b"", False
        one.settimeout(0.05)
        deadline = time.monotonic() + 60
        while not closed and time.monotonic() < deadline:
            try:
                data = one.recv(1 << 20)
                received, closed = received + data, not data
                if start and not closed:
                    one.sendall(b"a")
            except TimeoutError:
                if start:
                    with contextlib.suppress(OSError):
                        one.sendall(b"a")
            except OSError:
                closed = True
        assert closed and received.count(b"200 OK") == before
        assert b"408" in received or (before and not start) or not received
        wait_until(lambda: not client.server.server_state.connections)
        monkeypatch.setattr(connections, "READ", 60)
        assert retrieve(client, ["castle"]).status_code == 200


def test_bytes_after_a_request_do_not_hurry_its_answer(gated, monkeypatch):
    from retrieval_index import connections

    monkeypatch.setattr(connections, "READ", 0.2)
    body = b'{"queries": ["castle"]}'
    gated.gate.clear()
    with serving(gated) as client, connect(client) as one:
        one.sendall(HEAD.replace(b"100", str(len(body)).encode()) + body + b"\r\n")
        wait_until(lambda: gated.calls)
        time.sleep(0.5)
        gated.gate.set()
        assert one.recv(15) == b"HTTP/1.1 200 OK"


def test_an_answer_that_is_not_taken_is_given_up(index, monkeypatch):
    from retrieval_index import connections

    class Large:
        corpus = index.corpus

        def search(self, queries, k):
            return [[Passage("1", "Large", "x" * 10_000_000)] for _ in queries]

    monkeypatch.setattr(connections, "WRITE", 0.2)
    body = b'{"queries": ["castle", "castle"]}'
    with serving(Large()) as client, connect(client) as one:
        one.sendall(HEAD.replace(b"100", str(len(body)).encode()) + body)
        assert one.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: not client.server.server_state.connections)


SERVER = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import retrieval_index
from retrieval_index import Passage
from retrieval_index.server import serve

class Slow:
    def __init__(self, index):
        self.index, self.corpus = index, index.corpus
    def search(self, queries, k):
        time.sleep(0.5 * ("slow" in queries))
        return self.index.search(queries, k)

passages = [Passage(town, town, f"{town} is a town.") for town in ("Rome", "Oslo", "Bern")]
serve(Slow(retrieval_index.build(passages, "rank-bm25")), port=int(sys.argv[1]))
"""


def test_a_server_under_attack_answers_and_drains(tmp_path):
    """400 half-open requests at 256 descriptors; then SIGTERM, while they are there and ten requests wait."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.PIPE, text=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: process.poll() is not None or not refuses_connections(client))
            attack = [connect(client) for _ in range(400)]
            for one in attack:
                with contextlib.suppress(OSError):
                    one.sendall(HEAD)
            for _ in range(20):
                with httpx.Client(base_url=client.base_url, timeout=60) as another:
                    assert retrieve(another, ["Rome"]).json()["result"][0][0]["title"] == "Rome"
            pool = ThreadPoolExecutor(10)
            asked = [pool.submit(retrieve, client, ["slow", "Rome"]) for _ in range(10)]
            wait_until(lambda: metric(client, "retrieval_waiting_queries") >= 10)
            process.send_signal(signal.SIGTERM)
            answers = [answer.result().json()["result"] for answer in asked]
            assert [[len(found) for found in answer] for answer in answers] == [[0, 1]] * 10
            wait_until(lambda: process.poll() is not None)
            assert process.returncode == -signal.SIGTERM
            assert "Traceback" not in process.stderr.read()
        for one in attack:
            one.close()
    finally:
        process.kill()
        process.wait()


def test_a_full_queue(gated, gated_client):
    gated.gate.clear()
    first = ThreadPoolExecutor(1).submit(retrieve, gated_client, ["castle"])
    wait_until(lambda: gated.calls)
    waiting = in_background(gated_client, ["river", "comet"], ["town"])
    refused = retrieve(gated_client, ["film", "film"])
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert "3 queries wait already, 4 at most" in refused.json()["detail"]
    gated.gate.set()
    assert [answer.result().status_code for answer in [first, *waiting]] == [200] * 3
    assert waiting[0].result().json() == retrieve(gated_client, ["river", "comet"]).json()
    assert retrieve(gated_client, ["film", "film"]).status_code == 200


def test_a_search_that_fails_spares_its_neighbours(gated, gated_client):
    gated.gate.clear()
    first = ThreadPoolExecutor(1).submit(retrieve, gated_client, ["castle"])
    wait_until(lambda: gated.calls)
    good, bad, fine = in_background(gated_client, ["river"], ["poison", "comet"], ["comet"])
    gated.gate.set()
    assert bad.result().status_code == 500
    assert bad.result().json() == {"detail": "the search failed: RuntimeError: this query is poison"}
    assert [answer.result().status_code for answer in (first, good, fine)] == [200] * 3
    assert fine.result().json() == retrieve(gated_client, ["comet"]).json()


def test_a_client_that_left_is_not_searched_for(gated, gated_client):
    gated.gate.clear()
    first = ThreadPoolExecutor(1).submit(retrieve, gated_client, ["castle"])
    wait_until(lambda: gated.calls)
    with pytest.raises(httpx.ReadTimeout):
        gated_client.post("/retrieve", json={"queries": ["river"]}, timeout=0.2)
    stays = in_background(gated_client, ["comet"])[0]
    gated.gate.set()
    assert first.result().status_code == stays.result().status_code == 200
    assert [queries for queries, _ in gated.calls] == [["castle"], ["comet"]]
    assert metric(gated_client, 'retrieval_requests_total{status="499"}') == 1


def test_shutting_down_answers_what_waits(gated):
    gated.gate.clear()
    with serving(gated) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(retrieve, client, ["castle"])
        wait_until(lambda: gated.calls)
        waiting = in_background(client, ["river"], ["comet"], topk=2)
        client.shut_down()
        wait_until(lambda: refuses_connections(client))
        gated.gate.set()
        assert [answer.result().status_code for answer in [first, *waiting]] == [200] * 3
        assert waiting[0].result().json()["result"][0]


def refuses_connections(client) -> bool:
    try:
        socket.create_connection((client.base_url.host, client.base_url.port)).close()
    except ConnectionRefusedError:
        return True
    return False


class Adapter:
    """A searcher of another server: it can search, and knows nothing else."""

    def search(self, queries, k):
        return [[Passage("1", "Arizona", "a state", 1.0)] for _ in queries]


def test_what_has_no_corpus_can_be_served():
    for searcher in (Adapter(), retrieval_index.ShardedSearcher([Adapter(), Adapter()])):
        with serving(searcher) as client:
            health = client.get("/health").json()
            assert (health["status"], health["passages"], health["fingerprint"]) == ("ok", None, None)


def test_health_and_metrics(index):
    with serving(index) as client:
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


def test_the_schema_is_documented(client):
    operation = client.get("/openapi.json").json()["paths"]["/retrieve"]["post"]
    assert set(operation["requestBody"]["content"]["application/json"]["schema"]["properties"]) == {
        *("queries", "topk", "return_scores")
    }


def test_limits_that_make_no_sense():
    with pytest.raises(ValueError, match="topk must be at least 1, got 0"):
        Limits(topk=0)
    with pytest.raises(ValueError, match="waiting"):
        Limits(queries=100, waiting=99)


def test_serve_listens_on_this_machine_alone(index, monkeypatch):
    from retrieval_index import server

    asked = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: asked.update(options))
    server.serve(index)
    assert (asked["host"], asked["port"]) == ("127.0.0.1", 8000)
    json.dumps({name: value for name, value in asked.items() if name != "http"})


def test_a_searcher_that_gives_nonsense_is_an_error_and_no_hang(index):
    class Nonsense:
        corpus = index.corpus

        def search(self, queries, k):
            return {"first": None, "second": iter(())}.get(queries[0])

    with serving(Nonsense()) as client:
        for query in ("first", "second"):
            answer = client.post("/retrieve", json={"queries": [query]})
            assert answer.status_code == 500
            assert "TypeError" in answer.json()["detail"]
