import json
import os
import pickle
from contextlib import contextmanager

import pytest

from retrieval_index import Passage, client
from retrieval_index.client import RemoteSearcher, SearchFailed
from retrieval_index.wire import entry_of, passage_of

httpx = pytest.importorskip("httpx")

TOTO = {"document": {"id": "7", "contents": '"Toto"\nToto is a band.'}, "score": 1.5}


def result(*lists):
    return 200, json.dumps({"result": lists}), {}


@contextmanager
def scripted(*answers):
    """A server that gives these answers (status, body, headers) in turn; None hangs up. Yields its URL and requests."""
    queue, requests = list(answers), []

    def handle(request):
        requests.append((request.url.path, json.loads(request.content)))
        if (answer := queue.pop(0)) is None:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        status, body, headers = answer
        return httpx.Response(status, content=body, headers=headers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteSearcher, "_client", lambda self: httpx.Client(transport=httpx.MockTransport(handle)))
        yield "http://server:8000", requests


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that the client would have slept."""
    slept = []
    monkeypatch.setattr(client.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("suffix", ["", "/", "/retrieve"])
def test_a_server_of_search_r1(suffix):
    with scripted(result([TOTO])) as (url, requests):
        found = RemoteSearcher(url + suffix).search(["band"], 2)
    assert found == [[Passage("7", "Toto", "Toto is a band.")]]
    assert found[0][0].score == 1.5
    assert requests == [("/retrieve", {"queries": ["band"], "topk": 2, "return_scores": True})]


def test_documents_of_other_servers():
    for document, passage in (
        ({"id": 7, "contents": '"Toto"\na\nb'}, Passage("7", "Toto", "a\nb")),
        ({"contents": '"Toto"\na', "title": "Toto", "text": "a"}, Passage("", "Toto", "a")),
        ({"id": "7", "contents": "x\ny", "title": "Toto"}, Passage("7", "Toto", "x\ny")),
        ({"id": "7", "contents": '"Toto"\na', "title": None}, Passage("7", "Toto", "a")),
    ):
        assert passage_of({"document": document, "score": 1}) == passage


@pytest.mark.parametrize("title", ["Toto", "", '"', '""', '"Heroes"', 'a "b"', " a ", "a\nb", '"\n"', "\n", "é☃"])
@pytest.mark.parametrize("text", ["a", "", "\n", 'a\n"b"\n'])
def test_passages_survive_the_wire(title, text):
    passage = Passage("7", title, text, 0.1)
    entry = json.loads(json.dumps(entry_of(passage, with_score=True)))
    assert passage_of(entry) == passage
    assert passage_of(entry).score == 0.1
    if "\n" not in title:
        del entry["document"]["title"]
        assert passage_of(entry) == passage


def test_many_queries_are_several_requests_and_of_too_many_passages_the_first_are_taken():
    queries = [str(number) for number in range(150)]
    entries = [entry_of(Passage(query, "t", "x", 1.0), with_score=True) for query in queries]
    lists = [[entry] for entry in entries]
    with scripted(result(*lists[:64]), result(*lists[64:128]), result(*lists[128:])) as (url, requests):
        assert [found[0].id for found in RemoteSearcher(url).search(queries, 1)] == queries
    assert [len(body["queries"]) for _, body in requests] == [64, 64, 22]
    with scripted(result(*lists[:63]), result(*lists[63:64])) as (url, requests):
        RemoteSearcher(url).search(queries[:64], 2049)
    assert [len(body["queries"]) for _, body in requests] == [63, 1]  # a server's limit on the passages of a request
    with scripted(result([]), result([])) as (url, requests):
        RemoteSearcher(url).search(queries[:2], 10**6)
    assert len(requests) == 2
    with scripted(result(entries[:9])) as (url, _):
        assert [p.id for p in RemoteSearcher(url).search(["band"], 3)[0]] == ["0", "1", "2"]


OTHERS = 204, 307, 401, 403, 404, 405, 408, 421, 425, 429


@pytest.mark.parametrize(
    "failure", [None, (500, "oops", {}), (503, '{"detail": "down"}', {}), *((n, "", {}) for n in OTHERS)]
)
def test_it_tries_again(failure, pauses):
    with scripted(failure, failure, result([TOTO])) as (url, requests):
        assert RemoteSearcher(url).search(["band"], 1)[0][0].title == "Toto"
    assert len(requests) == 3
    assert 0 < pauses[0] <= client.BACKOFF < pauses[1] * 2 <= client.BACKOFF * 4


def test_it_waits_as_long_as_the_server_asks(pauses):
    asking = [(429, "", {"Retry-After": wait}) for wait in ("7", "1e9", "Fri, 31 Dec 1999 23:59:59 GMT")]
    with scripted(*asking, result([TOTO])) as (url, _):
        RemoteSearcher(url).search(["band"], 1)
    assert 7 < pauses[0] < 8
    assert client.LONGEST_PAUSE < pauses[1] < client.LONGEST_PAUSE + 1
    assert pauses[2] <= 4 * client.BACKOFF


def test_it_gives_up(pauses):
    answers = [(500, '{"detail": "no disk"}', {})] * 3
    with scripted(*answers) as (url, requests), pytest.raises(SearchFailed) as failed:
        RemoteSearcher(url, retries=2).search(["band"], 1)
    assert str(failed.value) == f"{url}/retrieve failed 3 times, at last with status 500: no disk"
    assert (len(requests), len(pauses)) == (3, 2)
    with pytest.raises(ConnectionError, match="failed 1 times, at last with ConnectError"):
        RemoteSearcher("http://127.0.0.1:9", retries=0).search(["band"], 1)


def test_it_times_out(pauses):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        searcher = RemoteSearcher(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05, retries=1)
        with pytest.raises(SearchFailed, match="failed 2 times, at last with ReadTimeout"):
            searcher.search(["band"], 1)


@pytest.mark.parametrize("status", [400, 413, 414, 422])
def test_a_refusal_is_not_tried_again(status, pauses):
    refusal = status, '{"detail": "topk: at most 100"}', {}
    with scripted(refusal) as (url, requests), pytest.raises(ValueError) as error:
        RemoteSearcher(url).search(["band"], 1000)
    assert str(error.value) == f"{url}/retrieve rejected the request with status {status}: topk: at most 100"
    assert len(requests) == 1


ODD_RESULTS = ["null", "[]", "[[], []]", "[null]", '["ab"]', "[[{}]]", '{"": 1}']


@pytest.mark.parametrize(
    "body",
    [
        *("<html>", "[]", "{}", "[" * 100_000, *(f'{{"result": {result}}}' for result in ODD_RESULTS)),
        '{"result": [[{"id": "7", "contents": "no score"}]]}',
        '{"result": [[{"document": {"id": "7"}, "score": 1}]]}',
        '{"result": [[{"document": {"contents": "a"}, "score": "high"}]]}',
        '{"result": [[{"document": {"contents": "a"}, "score": 1' + "0" * 400 + "}]]}",
        '{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}',
    ],
)
def test_a_malformed_answer_is_an_error(body):
    with scripted((200, body, {})) as (url, _), pytest.raises(SearchFailed, match="malformed"):
        RemoteSearcher(url).search(["band"], 1)


def test_arguments_are_checked_as_in_process():
    searcher = RemoteSearcher("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="at least 1"):
        searcher.search(["band"], 0)
    assert searcher.search([], 3) == []  # without a request
    with pytest.raises(TypeError, match="got a generator"):
        searcher.search((q for q in ["band"]), 1)
    addresses = "localhost:8000", "http://127.0.0.1:80a", "http://", "http://h:1/retrieve?x=1"
    for wrong in (*({"url": address} for address in addresses), {"timeout": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match="address of a server" if "url" in wrong else next(iter(wrong))):
            RemoteSearcher(**{"url": "http://localhost", **wrong})


def test_it_pickles_and_a_fork_opens_connections_of_its_own(monkeypatch):
    searcher = RemoteSearcher("http://127.0.0.1:9", timeout=5.0, retries=1)
    copy = pickle.loads(pickle.dumps(searcher))
    assert (copy.url, copy.timeout, copy.retries) == ("http://127.0.0.1:9/retrieve", 5.0, 1)
    assert searcher._client() is (parents := searcher._client())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert searcher._client() is not parents
