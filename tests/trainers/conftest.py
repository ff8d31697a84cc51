"""Random policies that cost nothing, and environments that say what a test wants them to say."""

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from agent_envs.formats import Format
from agent_envs.generators.miniwiki import World
from agent_envs.rewards import Metric, Reward
from agent_envs.tasks.qa import QAEnv
from agent_envs.tool_env import ToolEnv
from agent_envs.types import Turn, TurnOutcome
from agent_envs.vector import ToolVectorEnv
from trainers.engines.transformers_engine import TransformersEngine
from trainers.episodes.report import figures
from trainers.factory import make_envs
from trainers.lifecycle import run as loop_run
from trainers.models import loading
from trainers.models.policy import Policy
from trainers.rollouts.rollout import rollout
from trainers.tiny import cold_start, curriculum, lessons
from trainers.tiny import model as tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL = {"entities": 60, "questions": 20, "max_turns": 2}
TEXT = ("the search for the town where the author of the book was born", "</search> <answer> the answer </answer>")


# Their fixtures are the most expensive ones.
FIRST = "test_distributed.py", "test_wrong_inputs.py", "test_interruptions.py"


def pytest_collection_modifyitems(items):
    """Begin with what has expensive fixtures of a module: at the end several workers share a file, and each makes its own."""
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The models are too small to share out, and two threads may add in two orders."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_fsync():
    """No test pulls the plug, and waiting for the disk takes as long as a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


SAVE_FIGURE = figures.save  # before any fixture: the tests of comparisons have these fixtures too


@pytest.fixture(scope="session", autouse=True)
def save_picture():
    """Leave pictures out, which take a third of a small run; the value draws one where a test wants it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", lambda figure, out: (Path(out).parent.mkdir(exist_ok=True), Path(out).touch()))
        yield SAVE_FIGURE


def byte_tokenizer(merges: int, pad: str, texts: Sequence[str] = TEXT) -> PreTrainedTokenizerFast:
    """Byte-level BPE of ``texts`` with a template like Qwen's; with ``merges`` 0, every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(specials) + len(alphabet) + merges
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*texts] * 20, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token=pad, chat_template=CHATML
    )


def task_texts() -> list[str]:
    """The instructions of a task that searches and of one that does not, and some passages."""
    small = {"entities": 60, "questions": 20}
    envs = [gymnasium.make("AgentR1/MiniWiki-Easy-v0", **small), gymnasium.make("AgentR1/FrozenLake-v0")]
    instructions = [env.reset(seed=0)[1]["instructions"] for env in envs]
    return [*instructions, *(f"{p.title}: {p.text}" for p in World(60, 0).passages())]


@pytest.fixture(scope="session")
def tokenizers():
    return {
        "bytes": byte_tokenizer(0, pad="<|im_end|>"),  # pad and eos are one token, as in many models
        "bpe": byte_tokenizer(60, pad="<|endoftext|>"),
        # What environments say takes a fifth of the tokens: for tests of whole runs.
        "subwords": byte_tokenizer(800, "<|endoftext|>", [*TEXT, *task_texts()]),
        "words": tiny.make_tokenizer([*TEXT, "Invalid turn : hello"]),
    }


def build_policy(tokenizers, kind: str, seed: int, scale: float = 0.15, family: str = "qwen2", **changes) -> Policy:
    torch.manual_seed(seed)
    tokenizer = tokenizers[kind]
    families = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    make_config, make_model = families[family]
    options = dict(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, initializer_range=scale,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    return Policy(make_model(make_config(**options | changes)), tokenizer)


@pytest.fixture(scope="session")
def make_policy(tokenizers):
    """``make_policy(kind, seed)``: a random untrained policy; larger weights than usual make it pick favourites."""
    return lambda kind="bytes", seed=0, **options: build_policy(tokenizers, kind, seed, **options)


def shrink_cold_start(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """Cold starts of a smaller policy, which knows fewer words and is shown fewer demonstrations, in a cache of their own."""
    make_model, run_unbroken = tiny.make_model, lessons.run_unbroken
    small = {"hidden_size": 32, "layers": 2, "intermediate_size": 32}
    patch.setenv("AGENT_ENVS_CACHE", str(cache))
    patch.setattr(curriculum, "POOL", 16)
    patch.setattr(lessons, "run_unbroken", lambda envs, few, *how, **seed: run_unbroken(envs, few[:40], *how, **seed))
    patch.setattr(tiny, "make_model", lambda *sizes, **how: make_model(*sizes, **how | small))
    for module in (cold_start, curriculum):
        patch.setattr(module, "World", lambda _, seed, difficulty: World(200, seed, difficulty=difficulty))


@pytest.fixture
def small_cold_start(tmp_path, monkeypatch):
    shrink_cold_start(monkeypatch, tmp_path / "cache")


@pytest.fixture
def quarter_seconds(monkeypatch):
    """An update takes a quarter of a second, by the clock of its run."""
    clock = itertools.count()
    monkeypatch.setattr(loop_run, "time", SimpleNamespace(monotonic=lambda: next(clock) / 4))


class Raw(Format):
    """A format in which any text is a turn that neither calls a tool nor answers."""

    name, stop = "raw", ("</search>", "</answer>")

    def instructions(self) -> str:
        return ""

    def parse(self, text: str) -> Turn:
        return Turn(error="")


class Reciter(ToolEnv):
    """Says its texts one after the other, whatever the agent says; pays ``rewards`` turn by turn; is truncated."""

    REWARD = Reward(paid=(1.0, Metric("paid")))
    PRIMARY_METRIC = "paid"

    def __init__(self, texts: list[str], rewards: list[float]):
        super().__init__((), instructions="Say something.", max_turns=len(texts))
        self.format, self.texts, self.rewards = Raw(()), texts, rewards

    def begin(self, options):
        return self.texts[0], {}

    def evaluate_turn(self, turn, results, done):
        return TurnOutcome({"paid": self.rewards[len(self.history.turns)], "em": 0.0})

    def _observe(self, turn, results):
        following = len(self.history.turns) + 1
        return self.texts[following] if following < len(self.texts) else "the end"


@pytest.fixture(scope="session")
def recite():
    """``recite(texts, rewards)``: a vector with one `Reciter` for each list of texts."""

    def make(texts: list[list[str]], rewards: list[list[float]] | None = None) -> ToolVectorEnv:
        rewards = rewards or [[1.0 + turn for turn in range(len(own))] for own in texts]
        envs = iter([Reciter(own, paid) for own, paid in zip(texts, rewards, strict=True)])
        return ToolVectorEnv(lambda: next(envs), len(texts))

    return make


class Letters(QAEnv):
    """MiniWiki that pays for lower-case letters too, so that even random policies differ in their returns."""

    def resolve(self, action, turn, results):
        observation, _, terminated, truncated, info = super().resolve(action, turn, results)
        info["reward_terms"]["letters"] = sum(c.islower() for c in action) / 8
        return observation, float(sum(info["reward_terms"].values())), terminated, truncated, info


def make_letters(num_envs: int = 1, vectorization_mode=None, **kwargs) -> ToolVectorEnv:
    return ToolVectorEnv(lambda: Letters(**kwargs), num_envs)


@pytest.fixture(scope="session")
def letters():
    """The id of the registered `Letters`."""
    gymnasium.register("Test/Letters-v0", entry_point=Letters, vector_entry_point=make_letters)
    yield "Test/Letters-v0"
    del gymnasium.registry["Test/Letters-v0"]


@pytest.fixture(scope="session")
def save_model(make_policy, tmp_path_factory):
    """``save_model(kind, seed)``: the folder of a model as it comes from the hub."""

    def save(kind="subwords", seed=3, **options) -> Path:
        folder, policy = tmp_path_factory.mktemp("model"), make_policy(kind, seed, **options)
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def model_folder(save_model):
    """The folder of one model of a layer for all tests, which nothing writes to."""
    return save_model(num_hidden_layers=1)


@pytest.fixture(scope="session")
def short_run(letters, model_folder):
    """``short_run(module, **changes)``: the arguments of a run of two updates on `Letters`."""

    def make(module, **changes):
        base = {
            "env": letters, "env_kwargs": SMALL, "model": model_folder, "updates": 2, "questions_per_update": 2,
            "group_size": 3, "lr": 0.01, "max_new_tokens": 6, "eval_every": 2, "eval_questions": 4, "final_questions": 4,
            "save_every": 1,
        }  # fmt: skip
        return module.Args(**base | changes)

    return make


@pytest.fixture(scope="session")
def roll_out(recite):
    """``roll_out(policy, texts, rewards)``: an episode of the policy in each of `recite`'s environments."""

    def play(policy, texts, rewards=None, group_size=2, max_new_tokens=6, **options):
        engine, seeds = TransformersEngine(policy, ("</search>",)), list(range(len(texts) // group_size))
        options |= {"group_size": group_size, "max_new_tokens": max_new_tokens}
        return rollout(recite(texts, rewards), policy, engine, seeds=seeds, **options)

    return play


@pytest.fixture
def rewritten(make_policy, letters):
    """Episodes whose context is the task and the last turn alone: each has several rows."""
    policy = make_policy("bytes")
    envs = make_envs(letters, json.dumps(SMALL | {"max_turns": 3, "context": "window:1"}), "train", 4)
    engine = TransformersEngine(policy, ("</search>",))
    return policy, rollout(envs, policy, engine, seeds=[0, 1], group_size=2, max_new_tokens=6)


@pytest.fixture
def bfloat16_products(monkeypatch):
    """Layers run in bfloat16 where they are asked to, however slow this processor is at it."""
    monkeypatch.setattr(loading, "has_bfloat16_products", lambda device: True)
