"""Downloads from the hub, played with local folders in the layout that the repositories have there."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest

from agent_envs.data import DataUnavailable, Question, hub, load_benchmark
from agent_envs.data.catalog import CATALOG
from agent_envs.data.question import paragraph_key

datasets = pytest.importorskip("datasets")

SENTENCES = [["Nebelmeer is a film.", " It is by Ada Kern."], ["Ada Kern directs.", " She is of Zürich."]]
CONTEXT = {"title": ["Nebelmeer", "Ada Kern"], "sentences": SENTENCES}
FACTS = {"title": ["Nebelmeer", "Ada Kern"], "sent_id": [0, 1]}
HOTPOT_ROW = {"answer": "Zürich", "type": "bridge", "level": "hard", "supporting_facts": FACTS, "context": CONTEXT}
HOTPOT_ROWS = [
    HOTPOT_ROW | {"id": f"5a{number}", "question": f"Where was the director of Nebelmeer {number} born?"}
    for number in range(3)
]
STEP = {"id": 1, "question": "Who?", "answer": "Ada Kern", "paragraph_support_idx": 0}
PARAGRAPH = {"idx": 0, "title": "Nebelmeer", "paragraph_text": "By Ada Kern.", "is_supporting": True}
MUSIQUE_ROW = {
    **{"id": "2hop__1_2", "question": "Where was the director of Nebelmeer born?", "answer": "Zürich"},
    **{"answer_aliases": [], "answerable": True, "question_decomposition": [STEP], "paragraphs": [PARAGRAPH]},
}

POPQA_TRIPLE = {"subj": "Nebelmeer", "prop": "director", "obj": "Ada Kern"}
TRIVIA_ANSWER = {"value": "Ada Kern", "aliases": ["Kern"], "normalized_aliases": ["ada kern", "kern"]}
TRIVIA_ROW = {"question": "Who?", "question_id": "tc_1", "answer": TRIVIA_ANSWER}


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """An empty cache, no network to probe, nothing remembered, and the datasets library's own cache in a corner."""
    monkeypatch.delenv("AGENT_ENVS_DATA", raising=False)
    monkeypatch.setenv("AGENT_ENVS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(hub, "_reachable_revision", lambda repository: None)
    hub._try_download.cache_clear()
    yield
    hub._try_download.cache_clear()


def put_on_hub(monkeypatch, name, folder):
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], repository=str(folder)))


@pytest.fixture
def hotpot(tmp_path, monkeypatch):
    """The layout of hotpotqa/hotpot_qa: parquet files, and the configurations in the front matter of the card."""
    folder = tmp_path / "hotpot_qa"
    (folder / "distractor").mkdir(parents=True)
    datasets.Dataset.from_list(HOTPOT_ROWS).to_parquet(str(folder / "distractor" / "validation-00000-of-00001.parquet"))
    files = "  data_files:\n  - split: validation\n    path: distractor/validation-*\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: distractor\n{files}---\n")
    put_on_hub(monkeypatch, "hotpotqa", folder)
    return folder


def test_hotpotqa_is_downloaded_once(hotpot, tmp_path, monkeypatch, capfd):
    benchmark = load_benchmark("hotpotqa", split="validation")
    assert benchmark.questions[1] == Question(
        id="5a1", question="Where was the director of Nebelmeer 1 born?", answer="Zürich", type="bridge",
        supporting_titles=("Nebelmeer", "Ada Kern"),
        supporting_paragraphs=tuple(paragraph_key(passage.text) for passage in benchmark.passages),
    )  # fmt: skip
    assert [passage.text for passage in benchmark.passages] == ["".join(texts) for texts in CONTEXT["sentences"]]
    assert benchmark.source == f"hub:{hotpot}"
    assert "hotpotqa.validation" in capfd.readouterr().err, "a progress bar"
    cached = tmp_path / "cache" / "hotpotqa.validation"
    names = sorted(path.name for path in cached.iterdir())
    assert names == ["hotpotqa.validation.jsonl", "origin.json", "passages.jsonl"]
    assert [path.name for path in cached.parent.iterdir()] == ["hotpotqa.validation"], "and nothing half-written"

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("downloaded twice"))
    hub._try_download.cache_clear()
    for source in ("hub", "local"):
        assert load_benchmark("hotpotqa", split="validation", source=source) == benchmark


@pytest.mark.parametrize(
    ("name", "row", "golds"),
    [
        ("bamboogle", {"Question": "Who?", "Answer": "Ada Kern"}, ("Ada Kern",)),
        ("popqa", {**POPQA_TRIPLE, "id": 42, "question": "Who?", "possible_answers": '["Ada Kern"]'}, ("Ada Kern",)),
        ("gsm8k", {"question": "How many?", "answer": "6*7=<<6*7=42>>42\n#### 42"}, ("42",)),
        ("nq", {"question": "who", "answer": ["Ada Kern", "Kern"]}, ("Ada Kern", "Kern")),
        ("triviaqa", TRIVIA_ROW, ("Ada Kern", "ada kern", "kern")),
    ],
)
def test_questions_without_passages(tmp_path, monkeypatch, name, row, golds):
    """In the split that papers report, which three of the five call test, and with no corpus that is empty."""
    entry = CATALOG[name]
    folder = tmp_path / name
    folder.mkdir()
    for split in ("train", entry.held_out):
        others = {key: f"{split} {value}" for key, value in row.items() if key.lower() == "question"}
        datasets.Dataset.from_list([{**row, **others}]).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    put_on_hub(monkeypatch, name, folder)
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], configuration=None))
    benchmark = load_benchmark(name, split="validation", questions_only=True)
    (question,) = benchmark.questions
    assert question.question.startswith(entry.held_out) and question.golds == golds
    assert benchmark.passages == () and benchmark.source == f"hub:{folder}"
    assert load_benchmark(name, split="validation", questions_only=True, source="local") == benchmark
    with pytest.raises(FileNotFoundError, match=r"passages\.jsonl to search in"):
        load_benchmark(name, split="validation")


def test_the_source_names_the_revision_and_a_split_that_is_not_there_is_a_reason(hotpot, monkeypatch):
    monkeypatch.setattr(hub, "_reachable_revision", lambda repository: "1908d6afbbead072334abe2965f91bd2709910ab")
    assert load_benchmark("hotpotqa", split="validation").source == f"hub:{hotpot}@1908d6a"
    with pytest.raises(DataUnavailable, match=r"the hub .*train"):
        load_benchmark("hotpotqa", split="train")


def test_a_failure_is_remembered(hotpot, monkeypatch):
    fail = mock.Mock(side_effect=ConnectionError("the cable is cut"))
    monkeypatch.setattr(datasets, "load_dataset", fail)
    for _ in range(3):
        with pytest.raises(DataUnavailable, match="ConnectionError: the cable is cut"):
            load_benchmark("hotpotqa", split="validation")
    with pytest.raises(FileNotFoundError, match="ConnectionError: the cable is cut"):
        load_benchmark("hotpotqa", split="validation", source="hub")
    assert fail.call_count == 1


def test_a_row_of_another_shape_leaves_no_trace_in_the_cache(tmp_path, monkeypatch):
    (tmp_path / "MuSiQue").mkdir()
    rows = [MUSIQUE_ROW, {**MUSIQUE_ROW, "answer": ""}]
    (tmp_path / "MuSiQue" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    put_on_hub(monkeypatch, "musique", tmp_path / "MuSiQue")
    with pytest.raises(ValueError, match="record 2: there is no 'answer'"):
        load_benchmark("musique", split="train")
    assert not list((tmp_path / "cache").iterdir())


def test_two_processes_that_download_at_once_leave_one_whole_folder(hotpot, tmp_path, monkeypatch):
    publish = hub._publish

    def publish_second(rows, name, split, source, cache):
        publish(HOTPOT_ROWS[:1], name, split, "hub:the faster process", cache)
        publish(rows, name, split, source, cache)

    monkeypatch.setattr(hub, "_publish", publish_second)
    benchmark = load_benchmark("hotpotqa", split="validation")
    assert benchmark.source == "hub:the faster process" and len(benchmark.questions) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["hotpotqa.validation"]


@pytest.mark.parametrize("settings", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_network_the_error_comes_at_once(tmp_path, settings):
    """In a process of its own, since these variables are read at import."""
    code = (
        "import time, datasets; from agent_envs.data import load_benchmark; begun = time.monotonic()\n"
        "try: load_benchmark('hotpotqa', split='train')\nfinally: print(time.monotonic() - begun)"
    )
    homes = {"HF_HOME": str(tmp_path / "home"), "AGENT_ENVS_CACHE": str(tmp_path / "cache")}
    environment = {**os.environ, **homes, **settings}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "DataUnavailable" in done.stderr and "the hub (hotpotqa/hotpot_qa): " in done.stderr
    assert float(done.stdout) < 15, "load_dataset by itself retries for 23 s"
