"""What an agent reads of passages, and the tool that opens an article."""

from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrieval_index
from agent_envs.tools import ReadTool, SearchTool, run_calls
from agent_envs.tools.search import cut, read_shown, show_passage
from agent_envs.types import ToolCall
from retrieval_index import Passage

RED = "The red fox is a mammal. It was named by J. Linnaeus in St. Ives. It lives in forests and meadows."


CUTS = {
    len(RED): RED,
    **dict.fromkeys((len(RED) - 1, 67), "The red fox is a mammal. It was named by J. Linnaeus in St. Ives. …"),
    46: "The red fox is a mammal. It was named by J. …",  # an abbreviation ends no sentence
    35: "The red fox is a mammal. …",
    42: "The red fox is a mammal. It was named by …",  # the sentence would leave too much room unused
    17: "The red fox is …",
}


def test_a_text_is_cut_at_a_sentence_or_else_at_a_word():
    assert {limit: cut(RED, limit) for limit in CUTS} == CUTS


@given(st.text(alphabet='ab .!?"A', max_size=80), st.integers(2, 90))
def test_a_cut_text_fits_and_is_a_beginning(text, limit):
    shown = cut(text, limit)
    assert len(shown) <= limit
    assert shown == text if len(text) <= limit else text.startswith(shown.removesuffix(" …"))
    assert shown == text or shown.endswith(" …")
    if shown != text and " " in text[: limit - 2].strip():
        assert text[len(shown) - 2] == " " or text[: limit - 2].rfind(" ") <= 0, "no word is cut where there is a space"


ODD = ["Star Trek: Picard", '"Heroes" (album)', 'The "A": B', '"', "X:", "Plain [2] title", "a\nb", "", 'My "Way"']


@pytest.mark.parametrize("title", ODD)
@pytest.mark.parametrize("text", ["text: more", '"quoted": text', "[2] Other: text", "two\n[2] Fake: lines"])
def test_titles_and_texts_can_be_told_apart(title, text):
    shown = show_passage(3, Passage("1", title, text))
    assert "\n" not in shown, "a line break in a text would let it pose as another passage"
    assert read_shown(f"<information>{shown}</information>") == [(" ".join(title.split()), " ".join(text.split()))]


PASSAGES = [
    Passage("1", "Ada Kern", "Ada Kern is a director. " * 20),
    Passage("2", "Nebelmeer", "Nebelmeer is a film."),
    Passage("3", "Ada Kern", "Ada Kern likes cats."),
    Passage("4", "Room #2", "Room #2 is a play."),
    Passage("5", "Salt &amp; Sea", "Salt & Sea is a novel."),
]


@pytest.fixture(params=["in memory", "on a server"])
def searcher(request):
    """The latter has no corpus to look at."""
    index = retrieval_index.build(PASSAGES)
    return index if request.param == "in memory" else SimpleNamespace(search=index.search)


def read(searcher, title, **arguments):
    return ReadTool(searcher, **arguments).execute_batch([{"title": title}])[0]


def test_read_opens_all_passages_of_a_title_in_full(searcher):
    result = read(searcher, " ada  KERN ")
    assert {passage.id for passage in result.data} == {"1", "3"} and result.ok
    assert set(read_shown(result.text)) == {("Ada Kern", PASSAGES[0].text.strip()), ("Ada Kern", PASSAGES[2].text)}
    assert "…" not in result.text
    assert read(searcher, "Salt & Sea").data == [PASSAGES[4]]


def test_what_is_too_long_is_read_in_parts(searcher):
    first = read(searcher, "Ada Kern", max_chars=500)
    assert first.text.endswith("(part 1 of 2; the next one is: Ada Kern #2)") and len(first.data) == 1
    second = read(searcher, "Ada Kern #2", max_chars=500)
    assert {*first.data, *second.data} == {PASSAGES[0], PASSAGES[2]} and "part" not in second.text
    assert second.text.startswith("[2] Ada Kern: ")
    assert read(searcher, "Ada Kern #3", max_chars=500).text == "This article has 2 parts."
    assert read(searcher, "Room #2").data == [PASSAGES[3]], "a title that ends so is a title first"


@pytest.mark.parametrize("max_chars", [20, 50, 200])
def test_a_passage_longer_than_a_part_is_read_in_parts(searcher, max_chars):
    shown: dict[str, str] = {}
    for part in range(1, 1000):
        result = read(searcher, f"Ada Kern #{part}", max_chars=max_chars)
        if not result.data:
            break
        *lines, _ = result.text.splitlines() if "(part" in result.text else (*result.text.splitlines(), "")
        assert sum(map(len, lines)) <= max_chars and len(lines) == len(result.data)
        for passage, (title, text) in zip(result.data, read_shown("\n".join(lines)), strict=True):
            assert title == "Ada Kern"
            shown[passage.id] = f"{shown.get(passage.id, '')} {text.removesuffix(' …')}".strip()
    assert result.text == f"This article has {part - 1} parts."
    whole = {passage.id: "".join(passage.text.split()) for passage in (PASSAGES[0], PASSAGES[2])}
    assert {id: "".join(text.split()) for id, text in shown.items()} == whole


def test_a_title_that_is_not_there_names_others_and_shows_nothing(searcher):
    result = read(searcher, "Ada the director")
    assert result.text == "There is no article with this title. Near to it: Ada Kern"
    assert result.data == [] and result.ok
    assert read(searcher, "zzz").text == "There is no article with this title."
    assert not read(searcher, "x" * 501).ok
    assert read(searcher, "#2").data == read(searcher, "").data == []


def test_more_passages_than_there_are_is_said():
    searcher = retrieval_index.build([Passage("1", "Oslo", "a town")])
    with pytest.warns(UserWarning, match="k is 2, and the corpus has 1 passages: a search shows no more"):
        SearchTool(searcher, k=2)


def test_a_damaged_index_is_no_mistake_of_the_agent():
    damage = retrieval_index.IndexCorrupt("posting_scores.npy: a block of it is not what was written")
    damaged = SimpleNamespace(search=mock.Mock(side_effect=damage))
    (result,) = run_calls([({"search": SearchTool(damaged, k=1)}, ToolCall("search", {"query": "Ada"}))])
    assert result.fault


@pytest.mark.parametrize("count", [12, 60])
def test_an_article_from_a_server_comes_in_its_order(count):
    """A server answers a search, best first; the rest of the index stays with it."""
    passages = [Passage(f"Oslo#{i}", "Oslo", f"Part {i}.") for i in range(count)]

    best = sorted(passages, key=lambda passage: passage.text[::-1])
    server = SimpleNamespace(search=lambda queries, k: [best[:k]] * len(queries))
    read = ReadTool(server, max_chars=100_000).execute_batch([{"title": "Oslo"}])[0]
    numbers = [int(passage.id.partition("#")[2]) for passage in read.data]
    assert numbers == sorted(numbers) and len(numbers) == min(count, 50)
    assert read.text.endswith("there may be more)") == (count > 50)


def test_tools_that_would_show_something_else_make_no_batch():
    index = retrieval_index.build(PASSAGES)
    for kind, changes in (
        (SearchTool, ({}, {"k": 2}, {"max_chars": 90}, {"max_tokens": 9, "tokenizer": "words"})),
        (ReadTool, ({}, {"max_chars": 90})),
    ):
        assert kind(index).batch_key == kind(index).batch_key
        assert len({kind(index, **arguments).batch_key for arguments in changes}) == len(changes)
