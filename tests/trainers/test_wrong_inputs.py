"""What commands say to somebody who mistypes: one line that says what to do, and within a second where that needs no torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import start_commands

from trainers import grpo

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"entities": 60, "questions": 20, "max_turns": 2}
HUB_ID = "somebody/some-model"  # the hub is at an address where nobody listens

# words of a command, and a part of what it says; "RUN" stands for the folder of a run
MODULES = {"compare": "experiments.compare", "agent_envs": "agent_envs", "retrieval_index": "retrieval_index"}

BEFORE_TORCH = [
    ("grpo --model no/such/folder", "there is no model folder no/such/folder: give a folder, a GGUF file or a hub id"),
    ("grpo --model ./empty", "empty holds no model (no config.json or adapter_config.json)"),
    ("grpo --model text.gguf", "text.gguf is not a GGUF file"),
    ("grpo --model none.gguf", "there is no file none.gguf"),
    ("grpo --model damaged", "damaged/config.json is damaged"),
    ("grpo --model text", "text is a file and no GGUF file"),
    ("grpo --model adapter", "is an adapter of /no/such/model.gguf, which is not here"),
    (f"grpo --model {HUB_ID}", f"there is no folder '{HUB_ID}' here, and http://127.0.0.1:9 cannot be asked for it"),
    (f"evaluate --checkpoint {HUB_ID}", "where there is a network, hf download somebody/some-model"),
    ("grpo --dtype bfloat16", "dtype makes no difference without a pretrained model: remove it"),
    ("ppo --env AgentR1/MiniWik-v0", "there is no environment 'AgentR1/MiniWik-v0': did you mean MiniWiki"),
    ("rloo --env hotpotqa", "there is no environment 'hotpotqa': did you mean HotpotQA"),
    ("gigpo --env Nothing", "there is no environment 'Nothing': did you register it?"),
    ("grpo --env nowhere:Mine/Task-v0", "there is no module 'nowhere' to import for the environment"),
    ("grpo --env CartPole-v1", "CartPole-v1 has a vector of its own, which knows no split"),
    ("grpo --env Bamboogle", "Bamboogle has only a test split"),
    ("grpo --env WebShop", "AgentR1/WebShop-v0 cannot be made: "),
    ("grpo --env mine:Mine/Task-v0 --env-kwargs {\"hop\":1}", "mine:Mine/Task-v0 has no argument 'hop'; it has: "),
    ("grpo --env mine:Mine/Open-v0 --env-kwargs {\"hop\":1}", "mine:Mine/Open-v0: "),
    ("grpo --env-kwargs {\"hop\":2}", "unexpected keyword argument 'hop' (did you mean 'hops'?); known: ['entities', 'types'"),
    ("grpo --env Bandit --env-kwargs {\"max_turns\":\"three\"}", "max_turns must be an integer of at least 1, got 'three'"),
    ("grpo --env-kwargs {hops:2}", "env_kwargs is not valid JSON"),
    ("sft --env-kwargs [1]", "env_kwargs must be a JSON object"),
    ("grpo --env-kwargs {\"split\":\"train\"}", "['split'] cannot be among the environment arguments"),
    ("grpo --env Mixture --env-kwargs {\"tasks\":{\"MiniWik\":1}}", "no environment 'MiniWik': did you mean MiniWiki"),
    ("grpo --env HotpotQA --env-kwargs {\"source\":\"local\"}", "The train split of HotpotQA was found nowhere"),
    ("grpo --lr inf", "lr must be finite, got inf"),
    ("grpo --report-to nothing", "unknown log sinks ['nothing']"),
    ("grpo --report-to wandb", "logging to wandb needs a package: pip install wandb"),
    ("grpo --engine vllm", "needs vllm: pip install -e '.[vllm]'"),
    ("grpo --push-to-hub a/b/c", "push_to_hub must be NAME or USER/NAME"),
    ("grpo --push-to-hub mine", "push_to_hub needs a token that may write: set HF_TOKEN"),
    ("grpo --resume nowhere", "nowhere is no run to continue: there is no such folder"),
    ("grpo --resume empty", "empty is no run to continue: there is no checkpoint in it"),
    ("ppo --resume RUN", "RUN is a run of grpo: python -m trainers.grpo --resume RUN"),
    ("grpo --resume RUN --lr 0.5", "RUN was trained with lr=0.01, not 0.5: leave the option out"),
    ("grpo --resume RUN --env-kwargs {\"k\":7}", "RUN was trained with env_kwargs="),
    ("grpo --out text", "cannot write to text: text is a file: give another --out"),
    ("grpo --out evaluated", "holds an evaluation: give another --out"),
    ("grpo --out RUN", "RUN holds an earlier run: give another --out, or go on with --resume RUN"),
    ("sft --messages none.jsonl", "there is no file of messages none.jsonl"),
    ("sft --episodes empty", "empty is not the folder of a run of sft: there is no demonstrations.jsonl"),
    ("sft --updates 3 --max-seconds 3", "updates and max_seconds both say how long to train"),
    ("evaluate --split tst", "split must be one of ('train', 'validation'), got 'tst'"),
    ("evaluate --questions -3", "questions must be at least 0, got -3"),
    ("export", "give --checkpoint"),
    ("export --checkpoint model", "model is not a checkpoint of a trainer"),
    ("export --checkpoint RUN/checkpoint-1 --out model", "model exists already: give another --out"),
    ("export_episodes", "give the folder of a run or of an evaluation, or an episodes.jsonl"),
    ("export_episodes nowhere --out new", "there is no nowhere: give the folder of a run"),
    ("export_episodes RUN", "give --out: the file to write"),
    ("report", "there is no source"),
    ("report nowhere", "nowhere does not exist"),
    ("report empty", "holds no summary.json, evaluation.json, metrics.jsonl or episodes.jsonl"),
    ("report RUN --episodes -1", "--episodes must be at least 0"),
    ("report text", "holds no episode"),
    ("report other.jsonl", "'a' is not a valid episode record"),
    ("compare --recipe nope", "there is no recipe 'nope': give a file, or one of ['agent-r1', 'algorithms'"),
    ("compare --arguments {", "arguments is not valid JSON"),
    ("compare --recipe real --model /no/where", "there is no model folder /no/where"),
    ("play", "give --checkpoint, or --model"),
]  # fmt: skip

AFTER_TORCH = [
    ("starpo starpo-s --env Nope", "there is no environment 'Nope'"),
    ("grpo --model cut --env-kwargs SMALL --out new", "cannot load a model from 'cut': "),
    ("grpo --model model --env-kwargs SMALL --out new --max-new-tokens 99999", "max_new_tokens is 99999, and the model reads"),
    ("evaluate --checkpoint model --env-kwargs SMALL --max-new-tokens 99999", "max_new_tokens is 99999, and the model reads"),
    ("evaluate --checkpoint model --engine vllm --vllm-url http://a http://b", "vllm_url must name 1 servers"),
    ("grpo --resume DAMAGED", "no checkpoint in DAMAGED is whole: "),
    ("evaluate --checkpoint DAMAGED/checkpoint-1 --env-kwargs SMALL", "is not what was saved: its checksum differs"),
    ("export --checkpoint DAMAGED/checkpoint-1 --out new", "is not what was saved: its checksum differs"),
    ("sft --script nosuch --model model --env-kwargs SMALL --out new", "has no script 'nosuch'; it has ['constant', 'oracle'"),
    ("compare --recipe algorithm.toml", "algorithm must be one of ['grpo', "),
    ("compare --arguments {\"lrr\":1}", "unknown keys ['lrr']; known: "),
    ("compare --recipe mine.toml --report", "runs/mine holds no result of this recipe yet"),
    ("compare --runs nope", "has no runs ['nope']; it has "),
    ("play --model model --env Sokoban --question Why?", "--question needs an environment of questions"),
]  # fmt: skip

OTHERS = [
    ("agent_envs describe CartPole-v1", "CartPoleEnv takes Discrete(2), not text"),
    ("play --checkpoint no/such/folder", "there is no model folder no/such/folder"),
    ("agent_envs view RUN --episode 999", "RUN/episodes.jsonl has no episode '999' among the "),
    ("agent_envs baselines Bandit --episodes 0", "episodes must be at least 1 where instances are made from seeds"),
    ("agent_envs baselines Bandit --episodes 1 --out /dev/null/x", "cannot write /dev/null/x"),
    ("retrieval_index build --corpus none.jsonl --out new", "none.jsonl"),
    ("retrieval_index build --corpus bad.jsonl --out new", "bad.jsonl"),
    ("retrieval_index search --index none question", "none"),
    ("retrieval_index serve --index empty", "empty"),
]  # fmt: skip

HELP = [(f"{name} --help", "") for name in "reinforce starpo evaluate sft compare".split()]
GROUPS = [  # commands, and what the process that starts them has imported; those after torch are started from this one
    (BEFORE_TORCH + HELP, "tyro trainers.cli agent_envs.tasks.qa huggingface_hub.hf_api"),
    (OTHERS, "tyro trainers.cli agent_envs.tasks.qa retrieval_index.build"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, model_folder, short_run):
    """A folder with a model, a run of one update and files that are none of what they are taken for."""
    folder = tmp_path_factory.mktemp("place")
    for name in ("model", "cut"):
        shutil.copytree(model_folder, folder / name)
    (folder / "cut" / "model.safetensors").write_bytes(b"1234")
    where = {"env": "MiniWiki", "model": folder / "model", "out": str(folder / "RUN")}
    grpo.main(short_run(grpo, updates=1, **where))
    shutil.copytree(folder / "RUN", folder / "DAMAGED")
    (folder / "DAMAGED" / "checkpoint-1" / "model.safetensors").write_bytes(b"1234")
    for name in ("empty", "damaged", "adapter", "evaluated"):
        (folder / name).mkdir()
    texts = {"damaged/config.json": "{", "text": "hello", "text.gguf": "hello", "bad.toml": "title = "}
    texts |= {
        "damaged/summary.json": "[]",
        "other.jsonl": '{"key": "a", "turns": 5}',
        "evaluated/evaluation.json": "{}",
    }
    texts |= {"adapter/adapter_config.json": '{"base_model_name_or_path": "/no/such/model.gguf"}'}
    texts |= {"bad.jsonl": '{"id": 1}', "algorithm.toml": 'title = "x"\n[runs.a]\nalgorithm = "grop"\n'}
    texts["mine.toml"] = 'title = "Mine"\nenv = "mine:Mine/Task-v0"\n[runs.a]\nalgorithm = "grpo"\n'
    texts["mine.py"] = (
        "import gymnasium\nfrom agent_envs.tool_env import ToolEnv\nclass Task(ToolEnv):\n"
        "    def __init__(self, split='train'):\n        super().__init__()\n"
        "gymnasium.register('Mine/Task-v0', entry_point=Task)\n"
        "from agent_envs.vector import vector_entry_point\nclass Open(ToolEnv):\n"
        "    def __init__(self, **common):\n        super().__init__(**common)\n"
        "gymnasium.register('Mine/Open-v0', entry_point=Open, vector_entry_point=vector_entry_point(Open))\n"
    )
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def split(words: str) -> list[str]:
    """The words of a command, its module first."""
    command, *rest = words.replace("SMALL", json.dumps(SMALL).replace(" ", "")).split()
    return [MODULES.get(command, f"trainers.{command}"), *rest]


def start(place: Path, cases: list, *imported: str) -> dict:
    """What came of each command, by its words; all of them are started from one process."""
    settings = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(place / "hub")}
    settings |= {"AGENT_ENVS_CACHE": str(place / "cache")}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "AGENT_ENVS_"))}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("start_commands.py"), place, *imported],
        input=json.dumps([split(words) for words, _ in cases]), capture_output=True, text=True, check=True,
        env={**others, **settings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
    )  # fmt: skip
    return dict(zip((words for words, _ in cases), json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def ended(place):
    found = {words: end for cases, modules in GROUPS for words, end in start(place, cases, *modules.split()).items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(place)
        patch.setenv("COLUMNS", "1000")
        return found | {words: start_commands.start(split(words)) for words, _ in AFTER_TORCH}


@pytest.mark.parametrize(("words", "said"), BEFORE_TORCH + AFTER_TORCH + OTHERS)
def test_a_mistake_is_said_in_a_line(ended, words, said):
    end, case, (command, *_) = ended[words], (words, said), words.split()
    *before, last = end["said"].splitlines()  # a build shows its progress before
    assert end["status"] in (1, 2) and "Traceback" not in end["said"] and said in last, end["said"]
    assert end["loaded"] == (case in AFTER_TORCH)
    if case not in OTHERS:
        assert last.startswith(f"python -m {MODULES.get(command, 'trainers.' + command)}")
    if case in BEFORE_TORCH:
        assert end["status"] == 2 and not before


def test_help_comes_before_torch(ended):
    for words, _ in HELP:
        assert ended[words]["status"] == 0 and not ended[words]["loaded"], ended[words]["said"]


def test_a_short_name_is_the_whole_id_everywhere():
    from trainers import evaluate, play, sft

    for args in (grpo.Args, sft.Args, evaluate.Args, play.Args):
        for name in ("MiniWiki", "MiniWiki-v0", "AgentR1/MiniWiki-v0"):
            assert args(env=name).env == "AgentR1/MiniWiki-v0"
    assert grpo.Args(env="my_module:Mine/Task-v0").env == "my_module:Mine/Task-v0"
    assert grpo.Args(env="CartPole-v1").env == "CartPole-v1"


def test_arguments_in_the_words_of_python():
    from experiments import compare
    from trainers import evaluate, export, sft

    args = grpo.Args(out="runs/x", env_kwargs={"k": 2}, report_to="tensorboard", vllm_url=[], model=Path("a") / "b")
    assert args == grpo.Args(out=Path("runs/x"), env_kwargs='{"k": 2}', report_to=("tensorboard",), model="a/b")
    assert sft.Args(resume="runs/y", script=["oracle"], messages="a.jsonl").messages == ("a.jsonl",)
    assert evaluate.Args(checkpoint="a", out="b").checkpoint == (Path("a"),)
    assert compare.Args(arguments={"lr": 1}, out="b").arguments == '{"lr": 1}'
    assert export.Args(checkpoint="a").checkpoint == Path("a")
