"""What goes into report.html."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import played_records as records
import pytest
from played_records import HOSTILE, SUMMARY

from trainers import report as command
from trainers.episodes.report import page as html_report
from trainers.episodes.report.headline import make_headline


class Reader(HTMLParser):
    """The blocks and the visible text of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.blocks, self.scripts, self.words, self._inside = {}, [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._inside = (tag, dict(attrs)) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.words.append(data)
        elif self._inside[0] == "script" and "id" in self._inside[1]:
            self.blocks[self._inside[1]["id"]] = json.loads(gzip.decompress(base64.b64decode(data)))
        elif self._inside[0] == "script":
            self.scripts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def played():
    return records.roll_out("AgentR1/MiniWiki-Easy-v0", {"Oracle": "oracle", "Random": "random"}, 6)


@pytest.fixture
def run(tmp_path, played):
    """The folder of a run."""
    folder = records.write(tmp_path / "run", played, tokens=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    lines = [{"step": i, "seconds": 2.0 * i, "episodes": 8.0 * i, "train/em": i / 10} for i in range(9)]
    lines[4] |= {"eval/em": 0.25, "policy/loss": None}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def read(source, **options) -> Reader:
    sources = source if isinstance(source, list) else [source]
    folder = sources[0] if sources[0].is_dir() else sources[0].parent
    return Reader(html_report.write(sources, folder / "page.html", **options).read_text(encoding="utf-8"))


def test_a_run_has_its_table_settings_and_warnings(run):
    page = read(run)
    for words in (
        "Naive RAG 0.100 0.050 – 0.150 0.200", "Trained 0.500 0.400 – 0.600 0.600 0.100", "python -m x --a '<i>'", "lr 0.5",
        '{"data": "<b>"}', "entropy collapsed at update 7 0.1 < 0.2", "eval_every 2", "updates 8", "training episodes 640",
        "a score on it is not a score on AgentR1/HotpotQA-v0", "A tool failed in 10.0% of the episodes of Trained",
        "Training was stopped because it had collapsed", "training 90 seconds", "seed 3",
        "date 2026-11-27 08:30 UTC version 0.1 hardware 2 CPU cores",
        "Exact match 0.10 → 0.50 on 50 held-out questions, 90 seconds",
        "Changed from the defaults lr 0.5", "2 settings as by default",
    ):  # fmt: skip
        assert words in page.text, words
    (part,) = page.blocks["data"]["parts"]
    assert part["metrics"]["step"] == list(range(9)) and part["metrics"]["eval/em"] == [None] * 4 + [0.25] + [None] * 4
    assert part["score"] == "em" and part["symptoms"] == [7]


def test_a_table_of_attempts_and_kinds_of_questions_and_what_an_api_refused(run):
    row = {
        "name": "M", "em": 0.5, "em_interval": [0.4, 0.6], "samples": 8, "pass_at_k": 0.7, "failed": 0.3,
        "problems": {"HTTP 400": 24}, "kinds": {"1 hop": 0.875, "yes or no": 0.125},
    }  # fmt: skip
    page = read(run, summary={**SUMMARY, "rows": [*SUMMARY["rows"], row]})
    assert "EM avg@8" in page.text and "pass@8" in page.text
    assert "A tool failed, or the API gave no answer, in 30.0% of the episodes of M." in page.text
    assert "M: HTTP 400 (24 times)." in page.text
    # Agents without kinds are left out.
    assert "EM by kind of question Agent 1 hop Yes/no M 0.875 0.125" in page.text
    assert "by kind of question" not in read(run, summary=SUMMARY).text


@pytest.mark.parametrize(
    ("known", "lines", "said"),
    [
        ({"evaluation": {"eval_questions": 200}}, [{"eval/em": 0.14}], "Exact match 0.14 on 200 held-out questions, untrained"),
        ({}, [{"eval/em": 0.14}, {"eval/em": 0.68, "time/update": 300.0}], "Exact match 0.14 → 0.68 so far, 5 minutes"),
        ({}, [{"step": 1}], ""),
        (
            {"heldout_loss_before": 1.2, "heldout_loss": 0.35, "episodes_held_out": 40, "seconds": 7200.0}, [],
            "Held-out loss 1.20 → 0.35 nats per token on 40 held-out demonstrations, 2.0 hours",
        ),
        (
            {"rows": [{"name": "A", "em": 0.5, "em_interval": [0.4, 0.6], "episodes": 800, "samples": 8}]}, [],
            "A: exact match 0.50 (95% CI 0.40 to 0.60) on 100 questions",
        ),
    ],
)  # fmt: skip
def test_the_headline_says_what_came_of_it(known, lines, said):
    assert make_headline(known, known.get("rows", []), lines, "em") == said


def test_each_episode_is_in_the_index_and_whole_in_a_chunk(run, played):
    blocks = read(run).blocks
    index = {entry["key"]: entry for entry in blocks["data"]["episodes"]}
    assert index.keys() == {record["key"] for record in played}
    for record in played:
        entry = index[record["key"]]
        body = blocks[f"chunk-{entry['chunk']}"][entry["at"]]
        texts = [(m["role"], m["text"]) for m in body["messages"]]
        assert texts == [(m["role"], m["content"]) for m in record["messages"]]
        assert [turn["found"] for turn in body["turns"]] == [turn["found"] for turn in record["turns"]]
        assert [turn["terms"] for turn in body["turns"]] == [turn["reward_terms"] for turn in record["turns"]]
        assert entry["flags"] & 1 == (record["score"] == 1) and entry["turns"] == len(record["turns"])
        assert body["supporting"] == record["supporting"] and entry["golds"] == record["golds"]
    assert len({entry["question"] for entry in index.values()}) == 6  # two agents share each


def test_tokens_are_runs_of_what_was_read_and_sampled(run, played):
    blocks = read(run).blocks
    entry = next(e for e in blocks["data"]["episodes"] if e["key"] == played[0]["key"])
    (runs,) = blocks[f"tokens-{entry['chunk']}"][entry["at"]]
    (sequence,) = records.tokens_of(played[0])["sequences"]
    assert entry["has_tokens"] and [mask for mask, *_ in runs] == [0, 1] * len(played[0]["turns"])
    own = [i for i, mine in enumerate(sequence["mask"]) if mine]
    for at, name in enumerate(("pieces", "ids", "logprobs", "advantages"), start=1):
        shown = [value for run in runs if run[0] for value in run[at]]
        assert shown == [v if at < 3 else round(v, 3) for v in (sequence[name][i] for i in own)]
    assert sum(run[2] for run in runs if not run[0]) == len(sequence["ids"]) - len(own)


def test_what_is_odd_about_an_episode(played, tmp_path):
    """A question is cut in the list and whole in the episode; of a very long message the middle is left out."""
    record = json.loads(json.dumps(played[0]))
    record |= {"score": 0.0, "truncated": True, "failed": True}
    record["turns"][0] |= {"invalid": True, "advantage": float("nan")}
    record["question"] = record["messages"][1]["content"] = "w " * 250 + "who was it?"
    record["messages"][2]["content"] = "thought " * 5000 + "<answer>FORTY-TWO</answer>"
    blocks = read(records.write(tmp_path / "a", [record])).blocks
    (entry,), (body,) = blocks["data"]["episodes"], blocks["chunk-0"]
    outcomes = [name for bit, name in enumerate(blocks["data"]["outcomes"]) if entry["flags"] >> bit & 1]
    assert outcomes == ["invalid", "truncated", "failed"]
    assert body["turns"][0]["advantage"] is None
    assert len(entry["text"]) == 402 and entry["text"].endswith(" …")
    asked, said = body["messages"][1]["text"], body["messages"][2]["text"]
    assert asked.endswith("who was it?")
    assert said.startswith("thought thought") and said.endswith("<answer>FORTY-TWO</answer>")
    assert " more characters) " in said


def test_episodes_alone_say_where_they_come_from(played, tmp_path):
    page = read(records.write(tmp_path / "a", played) / "episodes.jsonl")
    assert "AgentR1/MiniWiki-Easy-v0 , validation · source: miniwiki:" in page.text and "No symptom" not in page.text


def test_with_a_limit_whole_questions_stay(played, tmp_path):
    early = [{**record, "step": 0, "key": f"early/{record['key']}"} for record in played]
    late = [{**record, "step": 9} for record in played]
    page = read(records.write(tmp_path / "a", [*early, *late]), episodes=8)
    kept = page.blocks["data"]["episodes"]
    assert len(kept) == 8 and all(entry["step"] == 9 for entry in kept)
    assert sorted(entry["question"] for entry in kept) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "16 more are in episodes.jsonl" in page.text
    everything = read(tmp_path / "a", episodes=0)
    assert len(everything.blocks["data"]["episodes"]) == 24 and "more are in" not in everything.text


def test_of_an_unfinished_run_the_newest_episodes_are_read(run, played):
    size = (run / "episodes.jsonl").stat().st_size
    page = read(run, summary={**SUMMARY, "symptoms": []}, unfinished="4 of 9 updates", newest=size // 2)
    keys = [entry["key"] for entry in page.blocks["data"]["episodes"]]
    assert 0 < len(keys) < len(played) and played[-1]["key"] in keys and played[0]["key"] not in keys
    assert "Unfinished, after 4 of 9 updates." in page.text and "No symptom of collapse." in page.text
    (run / "summary.json").unlink()  # as where it was killed
    page = read(run)
    assert "Unfinished, after 8 updates." in page.text and "No symptom" not in page.text
    last = read(run, summary=SUMMARY, unfinished="4 of 9 updates", newest=2 * size, episodes=3)
    assert {e["key"] for e in last.blocks["data"]["episodes"]} == {record["key"] for record in played[-3:]}


def test_several_runs_are_told_apart(run, tmp_path, played):
    data = read([run, records.write(tmp_path / "other" / "run", played)]).blocks["data"]
    assert [part["name"] for part in data["parts"]] == [f"{tmp_path.name}/run", "other/run"]
    assert sorted({entry["part"] for entry in data["episodes"]}) == [0, 1]
    assert len({entry["question"] for entry in data["episodes"]}) == 6  # the same questions in both


def test_hostile_text_neither_ends_nor_runs_anything_and_nothing_is_asked_for(run, played):
    record = json.loads(json.dumps(played[0]))
    for message in record["messages"]:
        message["content"] = HOSTILE
    record |= {name: HOSTILE for name in ("agent", "question")}
    record |= {"golds": [HOSTILE], "kind": {HOSTILE: HOSTILE}, "supporting": [HOSTILE]}
    record["turns"][0]["reward_terms"] = {HOSTILE: 1.0}
    records.write(run, [record], tokens=True)
    told = {"rows": [{**SUMMARY["rows"][0], "name": HOSTILE}], "source": HOSTILE, "settings": {HOSTILE: HOSTILE}}
    (run / "summary.json").write_text(json.dumps({**SUMMARY, **told, "command": HOSTILE}))
    page, text = read(run, episodes=0), (run / "page.html").read_text(encoding="utf-8")
    assert len(page.scripts) == 2 and text.count("<script>") == 2 and "<img" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    everything = json.dumps(page.blocks, ensure_ascii=False)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e\ud800]", everything)
    assert "\\\\x1b[2J" in everything and "{{ 7*7 }}" in everything and "49" not in page.text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src 'none'" in policy and policy.count("sha256-") == 2 and "unsafe-inline'; img" in policy
    assert not re.findall(r"(?:src|href)=\"(?!#|data:,)[^\"]*\"", text)


def test_a_page_that_cannot_be_written_ends_no_run(run, capsys):
    (run / "summary.json").write_text("{")
    html_report.write_beside(run)
    assert "report.html was not written" in (said := capsys.readouterr().err) and "damaged" in said


def test_the_command_writes_beside_the_first_source_or_where_it_is_told(run):
    assert command.main(command.Args(sources=(run,))) == run / "report.html"
    assert command.main(command.Args(sources=(run / "episodes.jsonl",), out=run / "x.html")) == run / "x.html"
