"""Whatever interrupts a run, it goes on from its checkpoint to be, bit for bit, the run that was not interrupted."""

import errno
import os
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch

from agent_envs.tool_env import ToolEnv
from trainers import grpo, ppo, reinforce, sft
from trainers.checkpoints import checkpoint
from trainers.episodes.report import tables
from trainers.evaluation import evaluator
from trainers.lifecycle.logger import Logger
from trainers.models import loading
from trainers.runtime import integrity, retry
from trainers.runtime.progress import read_metrics
from trainers.runtime.signals import TrainingStopped
from trainers.tiny.cold_start import start_policy

TIMED = ("seconds", "time/", "tokens/per_second")
KINDS = {  # of every state that a run keeps beside its weights
    "grpo": (grpo, {}),
    "dapo, refilled": (grpo, {"filter": "mixed", "dynamic_sampling": 2, "importance": "tis", "entropy_coef": 0.01}),
    "reinforce++-baseline": (reinforce, {"baseline": "group", "kl_coef": 0.01, "kl": "k2"}),
    "ppo, shared, k1 in the reward": (ppo, {"share_layers": True, "kl_coef": 0.05, "kl": "k1", "kl_target": 0.01}),
    "ppo, lora": (ppo, {"kl_coef": 0.1, "lora_rank": 2, "gradient_checkpointing": True}),
    "sft": (sft, {}),
    "sft, lora": (sft, {"lora_rank": 2, "dtype": "bfloat16"}),
}


@pytest.fixture(scope="module")
def start(short_run, model_folder):
    """``start(kind, out=…)``: four updates of a kind of run, of which the second and the last are saved."""

    def run(kind, **where):
        module, options = KINDS[kind]
        options = options | {"updates": 4, "save_every": 2, "eval_every": 2, "lr": 0.01, **where}
        if module is sft:
            own = {"env_kwargs": {"entities": 60, "questions": 24}, "demonstrations": 6, "tokens_per_update": 1500}
            args = sft.Args(model=model_folder, **own | options)
        else:
            few = {"minibatches": 2, "final_questions": 2, "eval_questions": 2, "max_new_tokens": 4}
            args = short_run(module, **few | options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "has_bfloat16_products", lambda device: True)
            return module.main(args)

    return run


def check_what_it_says(kind, folder, summary, model_folder):
    """Of a whole run by reinforcement learning: what its checkpoints, its summary and its metrics hold."""
    before = (model_folder / "model.safetensors").read_bytes()
    assert all(path.read_bytes() != before for path in folder.glob("checkpoint-*/*.safetensors"))
    module, options = KINDS[kind]
    beside = torch.load(integrity.latest(folder) / integrity.STATE_FILE, weights_only=True)["modules"]
    assert set(beside) == ({"critic"} if module is ppo else set()) | ({"kl"} if "kl_target" in options else set())
    assert summary["rows"][-1]["name"].startswith("Trained with ")
    assert summary["algorithm"] == (kind if module is reinforce else module.__name__.partition(".")[2])
    told = [symptom["name"] for symptom in summary["symptoms"]]  # the untrained policy never ends a turn
    assert told == ["turns are cut"] and not summary["stopped_on_collapse"]
    last = read_metrics(folder / "metrics.jsonl")[-1]
    measured = {key.removeprefix("monitor/") for key in last}
    assert {"reward_deviation", "response_length", "repetition", "search_rate", "valid_turns"} <= measured
    assert last["monitor/reward_deviation"] > 0 and last["monitor/entropy"] == last["policy/entropy"]


@pytest.fixture(scope="module")
def whole(start, model_folder, tmp_path_factory):
    """``whole(kind)``: the folder of the run that nothing interrupts, which says what it is."""
    runs = {}

    def run(kind):
        if kind not in runs:
            folder = tmp_path_factory.mktemp("whole") / "run"
            summary = start(kind, out=folder)
            if not kind.startswith("sft"):
                check_what_it_says(kind, folder, summary, model_folder)
            runs[kind] = folder
        return runs[kind]

    return run


@pytest.fixture
def tools(monkeypatch):
    """All tools break while ``tools["broken"]``, until ``mended_after`` pauses; no pause is waited for."""
    state, resolve = {"broken": False, "pauses": 0, "mended_after": 99, "now": 0.0}, ToolEnv.resolve

    def break_tools(self, *given):
        *rest, info = resolve(self, *given)
        return *rest, info | {"tool_faults": 2 if state["broken"] else 0}

    def pause(seconds):
        state["pauses"] += 1
        state["now"] += seconds
        state["broken"] = state["pauses"] < state["mended_after"]

    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: state["now"]))
    monkeypatch.setattr(ToolEnv, "resolve", break_tools)
    monkeypatch.setattr(retry, "_pause", pause)
    return state


def assert_same(ours, theirs):
    """Weights, what is trained beside them, optimizers and metrics, but for how long everything took."""
    for path in ours.glob("*/*.safetensors"):
        assert path.read_bytes() == (theirs / path.relative_to(ours)).read_bytes(), path
    states = [torch.load(integrity.latest(run) / integrity.STATE_FILE, weights_only=True) for run in (ours, theirs)]
    for part in ("optimizers", "modules"):
        torch.testing.assert_close(states[0][part], states[1][part], rtol=0, atol=0)
    metrics: list[dict[int, dict]] = [{}, {}]
    for run, by_step in zip((ours, theirs), metrics, strict=True):
        for line in read_metrics(run / "metrics.jsonl"):  # of a step that was evaluated later, there are two
            by_step.setdefault(line["step"], {}).update(line)
    kept = [
        {step: {n: v for n, v in of.items() if not n.startswith(TIMED)} for step, of in by_step.items()}
        for by_step in metrics
    ]
    assert kept[0] == kept[1]


def in_update(patch, module, number, act):
    """Have ``act()`` called after update ``number``."""
    module = module if module in (ppo, sft) else grpo  # whose loop the others run
    update, calls = module.update, []

    def updated(*given):
        metrics = update(*given)
        calls.append(0)
        if len(calls) == number:
            act()
        return metrics

    patch.setattr(module, "update", updated)


# -- what interrupts: each starts a run, which ends otherwise than it should ----------------------------------------------


def kill(run, patch, module, **_):
    """After the third update, which no checkpoint has."""
    in_update(patch, module, 4, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()


def send(number):
    def interrupt(run, patch, module, folder, capfd, **_):
        in_update(patch, module, 1, lambda: os.kill(os.getpid(), number))
        with pytest.raises(SystemExit) as ended:
            run()
        assert ended.value.code == 128 + number
        said = capfd.readouterr().err
        assert f"Stopped by {signal.Signals(number).name}: " in said and "Traceback" not in said
        assert "checkpoint-1 is saved: 1 of 4 updates; --resume" in said
        assert not (folder / "summary.json").exists()
        assert "Unfinished, after 1 of 4 updates." in (folder / "report.html").read_text()

    return interrupt


def break_tools_in(update):
    def interrupt(run, patch, module, folder, tools, **_):
        """The batch after the first update, or the evaluation after the second, which the resumed run makes up for."""
        in_update(patch, module, update, lambda: tools.update(broken=True))
        saved = rf"failed in 100%.*checkpoint-{update} is saved: {update} of 4 updates; --resume"
        with pytest.raises(TrainingStopped, match=saved):
            run(tool_outage_minutes=0.1)
        assert tools["pauses"] == 3  # 1, 2 and 3 seconds are 0.1 minutes
        steps = [(line["step"], "eval/em" in line) for line in read_metrics(folder / "metrics.jsonl")]
        assert steps == [(0, True), (1, False), (2, False)][: update + 1]
        tools["broken"] = False

    return interrupt


def fill_disk(owner, name, fails_at, error=None):
    """Libraries say it in words of their own."""

    def interrupt(run, patch, folder, **_):
        full, works, calls = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), getattr(owner, name), []

        def write(*given, **named):
            calls.append(0)
            if len(calls) == fails_at:
                raise error or full
            return works(*given, **named)

        patch.setattr(owner, name, write)
        cannot = rf"run cannot be written to \({full.strerror}\)\. .*checkpoint-"
        with pytest.raises(TrainingStopped, match=cannot) as ended:
            run()
        assert f"--resume {folder}" in str(ended.value) and "\n" not in str(ended.value)
        assert all(path.name.startswith("checkpoint-") for path in integrity.step_folders(folder))
        assert integrity.find_latest(folder)[1] == []

    return interrupt


def damage(lose):
    def interrupt(whole, folder, **_):
        shutil.copytree(whole, folder)
        (folder / "summary.json").unlink()
        lose(folder / "checkpoint-4")
        with pytest.raises(integrity.CheckpointDamaged):  # nor is it taken for a plain model
            evaluator.load_agent(folder / "checkpoint-4")
        with pytest.raises(integrity.CheckpointDamaged):
            start_policy(grpo.Args(model=str(folder / "checkpoint-4")), None)

    return interrupt


def flip_a_bit(saved):
    content = bytearray((saved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (saved / "model.safetensors").write_bytes(content)


HOW = {
    "killed": kill,
    "SIGTERM": send(signal.SIGTERM),
    "SIGINT": send(signal.SIGINT),
    "no tools for a batch": break_tools_in(1),
    "no tools for an evaluation": break_tools_in(2),
    "no disk for metrics": fill_disk(Logger, "log", 4),
    "no disk for weights": fill_disk(
        checkpoint, "write_checksums", 2, RuntimeError(f"Error: {os.strerror(errno.ENOSPC)} (os error 28)")
    ),
    "no disk for the state": fill_disk(torch, "save", 2),
    "no disk for the report": fill_disk(tables, "write_summary", 1),
    "damaged weights": damage(flip_a_bit),
    "lost checksums": damage(lambda saved: (saved / integrity.CHECKSUMS_FILE).unlink()),
}
CASES = [*((kind, "killed") for kind in KINDS), *(("grpo", how) for how in HOW if how != "killed"), ("sft", "SIGINT")]
CASES.remove(("grpo", "SIGINT"))


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_an_interrupted_run_is_the_whole_one(start, whole, tools, monkeypatch, tmp_path, capfd, kind, how):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        HOW[how](
            run=lambda **options: start(kind, out=folder, **options), patch=patch, module=KINDS[kind][0], folder=folder,
            tools=tools, capfd=capfd, whole=whole(kind),
        )  # fmt: skip
    capfd.readouterr()
    start(kind, resume=folder)
    assert_same(whole(kind), folder)
    if how in ("damaged weights", "lost checksums"):
        said = capfd.readouterr().err
        assert "It is set aside as checkpoint-4.damaged, and checkpoint-2 is continued from" in said
        assert "the last 2 updates are after the checkpoint" in said
        assert (folder / "checkpoint-4.damaged").is_dir()


def test_a_run_that_waited_for_its_tools_is_the_whole_one(start, whole, tools, monkeypatch, tmp_path, capsys):
    in_update(monkeypatch, grpo, 1, lambda: tools.update(broken=True, mended_after=2))
    start("grpo", out=tmp_path / "run")
    assert "a tool failed in 100% of the episodes: they are rolled out again in 1 s" in capsys.readouterr().err
    assert_same(whole("grpo"), tmp_path / "run")


def test_tools_that_never_worked_and_those_that_still_do_not(start, tools, tmp_path):
    tools["broken"] = True
    with pytest.raises(TrainingStopped, match="failed in 100%"):
        start("grpo", out=tmp_path / "run", tool_outage_minutes=0.0)
    tools["broken"] = False
    start("grpo", out=tmp_path / "resumed", updates=2)
    tools["broken"] = True
    with pytest.raises(TrainingStopped, match="failed in 100%"):
        start("grpo", resume=tmp_path / "resumed", tool_outage_minutes=0.0)
