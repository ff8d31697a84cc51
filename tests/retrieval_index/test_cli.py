import sys
import warnings

import pytest

import retrieval_index
import retrieval_index.__main__ as command_line
from retrieval_index.__main__ import serve
from retrieval_index.corpus import write_passages


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line; returns what it printed, both streams."""

    def run(*arguments, expect=0) -> str:
        monkeypatch.setattr(sys, "argv", ["retrieval_index", *map(str, arguments)])
        try:
            status = command_line.main()
        except SystemExit as stopped:  # of help, and of unknown options
            status = stopped.code
        said = "".join(capsys.readouterr())
        assert status == expect, said
        return said

    return run


def test_options_reach_the_index(run, tmp_path, passages):
    write_passages([*passages, *passages[:5]], tmp_path)
    source, out = tmp_path / "passages.jsonl", tmp_path / "index"
    assert "5 duplicates" in run("build", "--corpus", source, "--out", out, "--k1", 0.9, "--b", 0.4)
    described = run("info", "--index", out)
    assert "k1 0.9, b 0.4" in described and "200 passages" in described and "bm25" in described
    run("build", "--corpus", source, "--out", out, "--backend", "hybrid", "--factory", "HNSW16")  # replaces the first
    assert "HNSW16" in run("info", "--index", out)
    assert "intact" in run("verify", "--index", out)
    run("build", "--corpus", source, "--out", out, "--title-weight", 2, "--no-exact-title")
    assert "title_weight 2, exact_title False" in " ".join(run("info", "--index", out).split())
    run("build", "--corpus", source, "--out", out, "--shards", 3)
    assert run("search", "--index", out, "castle orchestra", "-k", 3).count("score") == 3
    (out / "shard-1" / "posting_rows.npy").write_bytes(b"")
    assert "posting_rows.npy" in run("verify", "--index", out, "--how", "fast", expect=1)
    assert "unrecognized" in run("info", "--index", out, "--shards", 3, expect=2).lower()
    wrong = run("build", "--corpus", source, "--out", out, "--encoder", "svd", expect=1)
    assert "bm25 has no option encoder" in wrong and "Traceback" not in wrong


def test_serve_hands_on_what_it_was_told(tmp_path, passages, monkeypatch):
    server = pytest.importorskip("retrieval_index.server", reason="the server needs the extra [server]")
    retrieval_index.build(passages).save(tmp_path / "index")
    for port in (-1, 65_536):
        with pytest.raises(ValueError, match="port must be"):
            serve(tmp_path / "index", port=port)
    told = {}
    monkeypatch.setattr(server, "serve", lambda searcher, **options: told.update(options, searcher=searcher))
    serve(tmp_path / "index", host="::", port=0, cache=7, max_batch=3, max_topk=5, max_waiting=9)
    assert told["searcher"].size == 7 and (told["host"], told["port"]) == ("::", 0)
    assert (told["limits"].queries, told["limits"].topk, told["limits"].waiting) == (3, 5, 9)


def test_help_teaches(run):
    assert "python -m retrieval_index build --corpus" in run("--help") and "JSONL" in run("build", "--help")


def test_a_warning_is_one_line_and_told_once(capsys, monkeypatch):
    def work():
        for category in (UserWarning, UserWarning, RuntimeWarning):
            warnings.warn(f"of a {category.__name__}", category, stacklevel=1)

    shared = command_line.command_line
    monkeypatch.setattr(shared, "_told", set())
    with pytest.warns(RuntimeWarning, match="of a RuntimeWarning"):  # what shows warnings is set back afterwards
        shared.run({"work": work}, "program", ["work"])
    assert capsys.readouterr().err == "Warning: of a UserWarning\n"


def test_ctrl_c_says_that_the_build_goes_on(monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line.command_line, "run", stop)
    monkeypatch.setattr(sys, "argv", ["retrieval_index", "build", "--corpus", "x"])
    assert command_line.main() == 130
    assert capsys.readouterr().err == "Stopped; the same command continues it.\n"
