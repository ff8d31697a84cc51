"""What a run and an evaluation leave of their episodes, and that nothing of it depends on kills and full disks."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from agent_envs.tasks.qa import QAEnv
from agent_envs.utils.scripts import EpisodeRecorder, roll_out
from trainers import grpo, ppo
from trainers.episodes import records as episodes
from trainers.episodes.records import EpisodeWriter, Origin, read_episodes, record_tokens, record_trajectory
from trainers.trajectory import Trajectory

SMALL = '{"entities": 60, "questions": 20, "max_turns": 2}'


@pytest.fixture(scope="module")
def policy(make_policy):
    return make_policy("subwords", 3)


@pytest.fixture(scope="module")
def train(short_run, tmp_path_factory):
    """``train(name, **changes)``: a run of two updates and its folder; the folder of a run that was made is kept."""
    folder = tmp_path_factory.mktemp("runs")
    few = {"group_size": 2, "eval_questions": 2, "eval_every": 1, "final_questions": 3, "keep_episodes": 3}

    def run(name, module=grpo, **changes):
        out = {} if "resume" in changes else {"out": folder / name}
        return module.main(short_run(module, **few | out | changes)), folder / name

    return run


@pytest.fixture(scope="module")
def whole(train):
    return train("whole")[1]


def test_a_run_records_evaluations_the_table_and_training_episodes(whole):
    records = list(read_episodes(whole / "episodes.jsonl"))
    found = Counter((r["phase"], r["table"], r["step"], r["agent"]) for r in records)
    table = ["Scripted agent", "Naive RAG", "Base Tool Call (before RL)", "Base Tool Call, sampled"]
    assert found == {
        **{("evaluation", True, 0, agent): 3 for agent in table},
        ("evaluation", True, 2, "Trained with GRPO"): 3,
        **{("evaluation", False, step, "Trained with GRPO"): 2 for step in (0, 1, 2)},
        **{("training", False, step, "GRPO (training)"): 3 for step in (1, 2)},
    }
    assert len({r["key"] for r in records}) == len(records)
    assert all(list(r) == list(records[0]) for r in records)
    summary = json.loads((whole / "summary.json").read_text())
    for row in summary["rows"]:
        scores = [r["score"] for r in records if r["table"] and r["agent"] == row["name"]]
        assert sum(scores) / len(scores) == pytest.approx(row["em"])
    training = [r for r in records if r["phase"] == "training" and r["step"] == 1]
    assert [r["sample"] for r in training] == [0, 1, 0]  # a whole group, then a part of the next one
    assert training[0]["group"] == training[1]["group"] != training[2]["group"]
    assert training[0]["question"] == training[1]["question"]


def test_advantages_and_tokens_belong_to_their_turns(whole):
    records = {r["key"]: r for r in read_episodes(whole / "episodes.jsonl")}
    tokens = list(read_episodes(whole / "episode_tokens.jsonl"))
    trained = {key for key, r in records.items() if r["phase"] == "training"}
    tabled = {key for key, r in records.items() if r["table"] and r["agent"] not in ("Scripted agent", "Naive RAG")}
    assert {line["key"] for line in tokens} == trained | tabled
    differ = False
    for line in tokens:
        record, (sequence,) = records[line["key"]], line["sequences"]
        assert len({len(values) for values in sequence.values() if values}) == 1
        assert sum(sequence["mask"]) == record["completion_tokens"]
        assert len(sequence["ids"]) == record["completion_tokens"] + record["prompt_tokens"]
        assert all(own or not logprob for own, logprob in zip(sequence["mask"], sequence["logprobs"], strict=True))
        if record["phase"] == "training":
            own = [a for a, m in zip(sequence["advantages"], sequence["mask"], strict=True) if m]
            assert sum(own) / len(own) == pytest.approx(record["advantage"], abs=1e-4)
            assert all(turn["advantage"] == pytest.approx(record["advantage"]) for turn in record["turns"])
            differ |= abs(record["advantage"]) > 1e-3
        else:
            assert not any(sequence["advantages"] or ()) and record["advantage"] is None
    assert differ


def test_messages_are_what_the_model_read(whole, policy):
    records = {r["key"]: r for r in read_episodes(whole / "episodes.jsonl")}
    for line in read_episodes(whole / "episode_tokens.jsonl"):
        record, (sequence,) = records[line["key"]], line["sequences"]
        read = policy.tokenizer.decode(sequence["ids"])
        last = record["turns"][-1]["message"]
        said = record["messages"]
        prompt = policy.tokenizer.apply_chat_template(said[:last], tokenize=False, add_generation_prompt=True)
        assert read.removesuffix("<|im_end|>") == prompt + said[last]["content"] and last == len(said) - 1
        assert all(said[turn["message"]]["content"] == turn["action"] for turn in record["turns"])


def test_none_are_kept_of_training_if_so_wished(train):
    _, folder = train("none", updates=1, eval_every=9, keep_episodes=0)
    assert {r["phase"] for r in read_episodes(folder / "episodes.jsonl")} == {"evaluation"}


def test_ppo_records_the_advantages_of_each_turn(train):
    _, folder = train("ppo", ppo, updates=1, eval_every=9)
    records = {r["key"]: r for r in read_episodes(folder / "episodes.jsonl") if r["phase"] == "training"}
    lines = [line for line in read_episodes(folder / "episode_tokens.jsonl") if line["key"] in records]
    assert len(lines) == 3 and all(r["agent"] == "PPO (training)" for r in records.values())
    assert any(len({turn["advantage"] for turn in r["turns"]}) > 1 for r in records.values())


def test_an_episode_without_a_turn_returns_what_its_program_was_paid():
    origin = Origin(phase="training", agent="a", name="a", env="e", split="train", source="s", score="em", step=1)
    paid = Trajectory(instance={"instance": 0}, reward_terms={"program": 0.5})
    assert record_trajectory(paid, origin)["return"] == paid.episode_return == 0.5


def test_a_context_that_was_rewritten_begins_with_its_system_message(rewritten):
    policy, played = rewritten
    origin = Origin(phase="training", agent="a", name="a", env="e", split="train", source="s", score="em", step=1)
    for trajectory in played:
        record = record_trajectory(trajectory, origin)
        tokens = record_tokens(trajectory, record["key"], episodes.make_pieces(policy.tokenizer))
        starts = [i for i, message in enumerate(record["messages"]) if message["role"] == "system"]
        assert len(starts) == len(tokens["sequences"]) > 1
        ends = [*starts[1:], len(record["messages"])]
        for sequence, start, end in zip(tokens["sequences"], starts, ends, strict=True):
            said = record["messages"][start:end]
            prompt = policy.tokenizer.apply_chat_template(said[:-1], tokenize=False, add_generation_prompt=True)
            read = policy.tokenizer.decode(sequence["ids"])
            assert read.removesuffix("<|im_end|>") == prompt + said[-1]["content"]


def test_killed_and_resumed_leaves_the_same_files(whole, train):
    _, folder = train("parts", updates=1)
    for name in ("episodes.jsonl", "episode_tokens.jsonl"):
        with (folder / name).open("ab") as file:  # the second update, and a line that a kill cut short
            file.write(b'{"key":"training/2/grpo-0/7/0","step":2}\n{"key":"evaluation/2/po')
    train("parts", resume=folder)
    for name in ("episodes.jsonl", "episode_tokens.jsonl"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_costs_the_episodes_alone(train, monkeypatch, capsys):
    monkeypatch.setattr(episodes, "EPISODES_FILE", "/dev/full")
    summary, folder = train("full", updates=1)
    assert capsys.readouterr().err.count("episodes are no longer recorded") == 1
    assert summary["rows"] and (folder / "checkpoint-1").is_dir() and (folder / "summary.json").is_file()


def test_found_evidence_and_results_by_hand():
    env = QAEnv(**json.loads(SMALL) | {"max_turns": 5}, split="validation")
    turns = roll_out(env, env.SCRIPTS["oracle"], 0, {"question": 1})
    observation, info = env.reset(options={"question": 1})
    recorder = EpisodeRecorder(env, info)
    question = env.questions[1]
    assert recorder.instance == {
        "question": observation, "id": question.id, "golds": list(question.golds),
        "kind": {"type": question.type, "hops": len(question.decomposition)},
        "supporting": list(question.supporting_titles), "format": "tags",
    }  # fmt: skip
    found = []
    for turn in turns:
        back, *_, info = env.step(turn["action"])
        noted = recorder.record_turn()
        assert not noted["invalid"] and all(call["result"] in back for call in noted["calls"])
        found += noted["found"]
        assert len(found) / len(question.supporting_titles) == pytest.approx(info["support_recall"])
    assert sorted(found) == sorted(question.supporting_titles)
    env.reset(options={"question": 1})
    again = EpisodeRecorder(env, info)
    env.step("nonsense")
    assert again.record_turn() == {"calls": [], "found": [], "invalid": True, "cut": False}


def test_lines_are_cut_by_the_step_of_their_key(tmp_path):
    writer = EpisodeWriter(tmp_path)
    names = "table/0/0 evaluation/1/policy training/2/grpo-1 table/1/trained training/10/a"
    keys = [f"{name}/1/0" for name in names.split()]
    writer.write([{"key": key, "advantage": None} for key in keys])
    writer.close()
    with (tmp_path / "episodes.jsonl").open("a") as file:
        file.write('{"key":"training/1/a')
    for resume, left in ((math.inf, keys), (2, keys[:3]), (1, keys[:2])):
        EpisodeWriter(tmp_path, resume).close()
        assert [record["key"] for record in read_episodes(tmp_path / "episodes.jsonl")] == left


def test_numbers_that_json_does_not_have(tmp_path):
    writer = EpisodeWriter(tmp_path)
    writer.write([{"key": "table/0/0/1/0"}, {"key": "table/0/0/2/0", "score": math.nan, "question": "\ud800"}])
    assert [r.get("score") for r in read_episodes(tmp_path / "episodes.jsonl")] == [None, None]


def test_pieces_are_the_text(make_policy):
    for kind, text in (("words", "the search for the town"), ("bytes", "Zürich"), ("bpe", "the town of the author")):
        policy = make_policy(kind)
        ids = policy.encode(text)
        pieces = episodes.make_pieces(policy.tokenizer)(ids)
        assert len(pieces) == len(ids)
        if kind != "bytes":  # a byte is no text alone
            assert "".join(pieces) == policy.tokenizer.decode(ids)


def test_a_run_loads_as_a_data_set(whole):
    rows = load(whole / "episodes.jsonl", whole)
    assert len(rows) == 4 * 3 + 3 + 3 * 2 + 2 * 3
    assert rows[0]["turns"][0]["reward_terms"] and rows[-1]["golds"]
    assert len(load(whole / "episode_tokens.jsonl", whole)) == 3 * 3 + 2 * 3


def load(path, folder):
    """The file as ``datasets`` reads it where its beginning, from which it takes the types, is short."""
    datasets = pytest.importorskip("datasets")
    cache = str(folder / "cache")
    return datasets.load_dataset("json", data_files=str(path), split="train", chunksize=20_000, cache_dir=cache)
