"""Where data comes from: the order of the places, what falls through and what must not, and what is said."""

import json
import pickle
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_envs.data import Benchmark, DataUnavailable, load_benchmark, local, stand_in_warning
from agent_envs.data import sources as data_sources
from agent_envs.data.catalog import CATALOG
from agent_envs.tasks import qa_data

pytestmark = pytest.mark.usefixtures("alone")


def make_folder(path, name="hotpotqa", split="validation", answer="Zürich"):
    path.mkdir(parents=True, exist_ok=True)
    question = {"id": "q1", "question": "Where was Ada Kern born?", "answer": answer}
    (path / f"{name}.{split}.jsonl").write_text(json.dumps(question) + "\n")
    passage = {"id": "p1", "title": "Ada Kern", "text": f"Ada Kern was born in {answer}."}
    (path / "passages.jsonl").write_text(json.dumps(passage) + "\n")
    return path


def make_cached(tmp_path, name="hotpotqa", split="validation", answer="Zug"):
    folder = make_folder(tmp_path / "cache" / f"{name}.{split}", name, split, answer)
    (folder / "origin.json").write_text(json.dumps({"source": "hub:hotpotqa/hotpot_qa@1908d6a"}))


def load(**arguments) -> Benchmark:
    return load_benchmark("hotpotqa", split="validation", **arguments)


def test_the_first_place_that_has_it_wins(tmp_path, monkeypatch):
    hub = make_folder(tmp_path / "hub", answer="Basel")
    monkeypatch.setattr(data_sources, "download", lambda name, split: (hub, "hub:hotpotqa/hotpot_qa"))
    assert (load().questions[0].answer, load().source) == ("Basel", "hub:hotpotqa/hotpot_qa")
    make_cached(tmp_path, answer="Zug")
    assert (load().questions[0].answer, load().source) == ("Zug", "hub:hotpotqa/hotpot_qa@1908d6a")
    monkeypatch.setenv("AGENT_ENVS_DATA", str(make_folder(tmp_path / "named", answer="Bern")))
    assert (load().questions[0].answer, load().source) == ("Bern", "local:named/hotpotqa.validation.jsonl")
    given = make_folder(tmp_path / "given", answer="Genf")
    assert load(data=given).questions[0].answer == "Genf"
    assert load(data=str(given), source="local").passages[0].text == "Ada Kern was born in Genf."
    assert load(source="local").questions[0].answer == "Bern"
    assert load(source="hub").questions[0].answer == "Zug", "the cache holds what the hub gave; the variable is not it"


def test_auto_ends_in_data_unavailable(tmp_path):
    with pytest.raises(DataUnavailable) as caught:
        load()
    error = caught.value
    places = ["$AGENT_ENVS_DATA", f"the cache {tmp_path / 'cache'}", "the hub (hotpotqa/hotpot_qa)"]
    assert [place for place, _ in error.tried] == places
    assert [reason for _, reason in error.tried][::2] == ["it is not set", "no network here"]
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("source", "places"),
    [("local", ["$AGENT_ENVS_DATA: it is not set", "the cache"]), ("hub", ["the cache", "the hub", "no network here"])],
)
def test_a_source_that_was_named_is_never_replaced(source, places, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load(source=source)
    assert "validation split of HotpotQA was found nowhere" in str(caught.value)
    assert all(place in str(caught.value) for place in places)
    assert ("the hub" in str(caught.value)) != (source == "local")
    with pytest.raises(FileNotFoundError, match="found nowhere"):  # nor by a stand-in where a corpus has no questions
        load(corpus=make_folder(tmp_path / "corpus"))


def test_what_was_named_must_be_there(tmp_path, monkeypatch):
    make_cached(tmp_path)
    (tmp_path / "empty").mkdir()
    files = r"data=: .*empty holds none of hotpotqa\.validation\.jsonl, hotpot_dev"
    for arguments, message in (
        ({"data": tmp_path / "typo"}, r"there is no .*typo"),
        ({"data": tmp_path / "empty"}, files),
        ({"corpus": tmp_path / "typo"}, r"there is no .*typo to search in"),
    ):
        with pytest.raises(FileNotFoundError, match=message):
            load(**arguments)
    monkeypatch.setenv("AGENT_ENVS_DATA", str(tmp_path / "typo"))
    with pytest.raises(FileNotFoundError, match=r"\$AGENT_ENVS_DATA must name a folder"):
        load()
    folder = make_folder(tmp_path / "named")  # a broken file is an error wherever it lies
    (folder / "hotpotqa.validation.jsonl").write_text('{"id": "q1", "question": "Who?"}\n')
    monkeypatch.setenv("AGENT_ENVS_DATA", str(folder))
    with pytest.raises(ValueError, match=r"hotpotqa\.validation\.jsonl:1: there is no 'answer'"):
        load()


def test_a_corpus_replaces_the_passages(tmp_path):
    data = make_folder(tmp_path / "data")
    other = make_folder(tmp_path / "wiki", answer="Wil")
    for corpus in (other, other / "passages.jsonl"):
        benchmark = load(data=data, corpus=corpus)
        assert benchmark.passages[0].text == "Ada Kern was born in Wil."
        assert benchmark.source == "local:data/hotpotqa.validation.jsonl + corpus wiki/passages.jsonl"
    (data / "passages.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="corpus="):
        load(data=data)
    assert load(data=data, corpus=other).questions[0].answer == "Zürich"


def test_a_corpus_may_have_any_form_that_passages_come_in(tmp_path):
    data = make_folder(tmp_path / "data")
    (tmp_path / "wiki.tsv").write_text("id\ttext\ttitle\n1\tAda was born in Wil.\tAda\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "ada.md").write_text("# Ada\n\nAda was born in Wil.\n")
    for corpus in ("wiki.tsv", "notes"):
        benchmark = load(data=data, corpus=tmp_path / corpus)
        assert [(p.title, p.text.splitlines()[-1]) for p in benchmark.passages] == [("Ada", "Ada was born in Wil.")]
        assert benchmark.source.endswith(f"/{corpus}")


def test_a_corpus_is_read_once_and_again_when_it_changes(tmp_path):
    folder = make_folder(tmp_path / "data")
    make_folder(folder, "musique", "train")
    first = load(data=folder)
    assert load(data=folder).questions is first.questions
    assert load_benchmark("musique", split="train", data=folder).passages is first.passages
    make_folder(folder, answer="Solothurn")
    assert load(data=folder).passages[0].text == "Ada Kern was born in Solothurn."


def test_a_large_corpus_is_indexed_once_by_its_content(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_INDEXED_ONCE", 1)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    folders = [
        make_folder(tmp_path / str(number), answer=answer) for number, answer in enumerate(("Bern", "Bern", "Wil"))
    ]

    def ask(folder):
        for cached in (local._read, local.open_index, qa_data._load, qa_data._build):
            cached.cache_clear()
        (result,) = qa_data.load("hotpotqa", data=str(folder), split="validation").searcher.search(["Ada Kern"], 1)
        return result[0].text, sorted((tmp_path / "cache" / "indexes").glob("[0-9a-f]*"))

    text, (index,) = ask(folders[0])
    assert text == "Ada Kern was born in Bern."
    with monkeypatch.context() as patch:
        patch.setattr(local, "build_folder", None)  # it is not called again
        assert ask(folders[1]) == (text, [index])
    (index / "offsets.npy").write_bytes(b"broken")
    assert ask(folders[0]) == (text, [index])  # built anew
    assert ask(folders[2])[0] == "Ada Kern was born in Wil."
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="is not kept, and is built anew each time"):
        assert load(data=folders[0]).passages[0].text == text


@pytest.fixture
def indexed(tmp_path, monkeypatch):
    """Reads a corpus by its index in the cache."""
    monkeypatch.setattr(local, "_INDEXED_ONCE", 1)
    local.open_index.cache_clear()
    return lambda corpus: local._index_once(corpus, tmp_path / "cache")


def test_an_index_of_texts_has_the_names_of_its_files(indexed, tmp_path):
    titles = []
    for name in ("Bern.txt", "Wil.txt"):
        (tmp_path / "notes").mkdir(exist_ok=True)
        (tmp_path / "notes" / name).write_text("A town.")
        titles.append(indexed(tmp_path / "notes").titles())
        (tmp_path / "notes" / name).unlink()
    assert [set(each) for each in titles] == [{"Bern"}, {"Wil"}]


def test_workers_wait_for_the_one_that_builds_the_index(indexed, tmp_path, monkeypatch):
    (tmp_path / "town.txt").write_text("A town.")
    built, build = [], local.build_folder

    def build_slowly(corpus, folder, **options):
        built.append(folder)
        time.sleep(0.3)
        build(corpus, folder, **options)

    monkeypatch.setattr(local, "build_folder", build_slowly)
    with ThreadPoolExecutor(3) as workers:
        read = list(workers.map(indexed, [tmp_path / "town.txt"] * 3))
    assert [corpus[0].text for corpus in read] == ["A town."] * 3 and len(built) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "hotpot"}, "name must be one of hotpotqa, 2wikimultihopqa, musique, .*gsm8k, got 'hotpot'"),
        ({"split": "test"}, "split must be one of train, validation"),
        ({"source": "web"}, "source must be one of auto, local, hub"),
        ({"source": "hub", "data": "x"}, "cannot go with"),
    ],
)
def test_unknown_words_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_benchmark(**{"name": "hotpotqa", "split": "train", **arguments})


@pytest.mark.parametrize("name", CATALOG)
def test_the_warning_says_what_it_is_not_and_how_to_get_it(name):
    with pytest.raises(DataUnavailable) as caught:
        load_benchmark(name, split="validation")
    text, entry = stand_in_warning(caught.value), CATALOG[name]
    assert text.startswith(f"THIS IS NOT {entry.title.upper()}.") and f"NOT a score on {entry.title}" in text
    for part in ("MiniWiki", "AGENT_ENVS_DATA=FOLDER", "data=FOLDER", "no network here", 'source="local"'):
        assert part in text
    assert f"{name}.validation.jsonl" in text and entry.official_files["validation"][0] in text
    assert ("no passages of its own" in text) != entry.own_passages


@pytest.mark.parametrize("place", ["hotpot_dev_distractor_v1.json", "hotpotqa.validation.jsonl"])
@pytest.mark.parametrize("text", ["", '{"a": 1}', "[1]", "nonsense"])
@pytest.mark.parametrize("searched", [False, True])
def test_what_is_no_file_of_the_benchmark_is_named_before_its_passages_are_missed(tmp_path, place, text, searched):
    (tmp_path / place).write_text(text)
    if searched:
        make_folder(tmp_path / "corpus")
    with pytest.raises(
        ValueError, match=f"{place}.*(no question|there is no '|not an object|expected an object|Expecting)"
    ):
        load(data=tmp_path, corpus=tmp_path / "corpus" if searched else None)


def test_one_file_for_both_splits_is_said_and_a_corpus_goes_without_an_index(tmp_path):
    make_folder(tmp_path)
    file = tmp_path / "hotpotqa.validation.jsonl"
    with pytest.warns(UserWarning, match="has the questions of both splits: what is trained on is evaluated on too"):
        qa_data.load("hotpotqa", split="train", data=str(file))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qa_data.load("hotpotqa", split="validation", data=str(file))
    with pytest.raises(ValueError, match="give corpus= or index=, not both"):
        qa_data.load("hotpotqa", split="validation", data=str(tmp_path), corpus=str(tmp_path), index="index")
