"""Write the pages of docs/tasks: one for each registered environment, and the table of all baselines.

    python -m benchmarks.envs.task_pages --data FOLDER      # FOLDER with real benchmarks; without it they keep their figures

Everything on a page but its baselines follows from the code; a test compares. The rows of the baselines are kept in
docs/tasks/baselines.json, so that pages can be written again without playing (``--episodes 0``).
"""

import importlib
import inspect
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import tyro
from rich.progress import track

import agent_envs
from agent_envs.data.catalog import CATALOG
from agent_envs.utils.baselines import run_baselines, table
from agent_envs.utils.describe import page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tasks"
ABOUT = {
    "hotpotqa": "Questions over two Wikipedia paragraphs, bridge and comparison (Yang et al. 2018).",
    "2wikimultihopqa": "Compositional, comparison, inference and bridge-comparison questions made from Wikidata and "
    "Wikipedia (Ho et al. 2020).",
    "musique": "Questions of two to four hops, composed of single-hop ones so that no shortcut answers them "
    "(Trivedi et al. 2022).",
    "bamboogle": "125 two-hop questions that a search engine does not answer (Press et al. 2023).",
    "nq": "Real questions to a search engine, with short answers (Kwiatkowski et al. 2019; open form, Lee et al. 2019).",
    "triviaqa": "Trivia questions with many aliases of each answer (Joshi et al. 2017).",
    "popqa": "Questions about entities of the long tail, made from Wikidata (Mallen et al. 2023).",
}

NOTES = {
    "hotpotqa": "A fullwiki file has the format of the distractor set, and its contexts, which a search engine found, lack "
    "a gold paragraph of most questions. It is loaded with a warning, and `source` says so.",
    "2wikimultihopqa": "The official scores count aliases, which are in a file of their own: put `id_aliases.json` beside "
    '`dev.json` and `train.json`. Without it there is a warning, and `source` says "without aliases".',
    "musique": "A title here often names several passages, and mostly one of them is gold. In the official order of the "
    "development set the first 1,179 questions are those of two hops: evaluations draw from the whole file.",
}

OWN = """# AgentR1/QA-v0

Questions of your own: answer them with the help of a search tool.

```python
env = gymnasium.make("AgentR1/QA-v0", data="my.jsonl", corpus="passages.jsonl", instructions="You know this town.")
```

The agent sees a question, searches your corpus over several turns and answers. What it may do and earns, and an episode, are
those of [MiniWiki](MiniWiki.md). What the files look like, how questions are held out, and how to train on them is in
[own_data.md](../own_data.md).
"""


@dataclass
class Args:
    """Write the task pages."""

    episodes: int = 200
    """Episodes that each baseline plays; 0 keeps the figures there are. Real questions are all played, once each."""
    data: Path | None = None
    """Folder with HotpotQA, 2WikiMultihopQA and MuSiQue, whose validation questions are then played."""


def file_name(id: str) -> str:
    return id.removeprefix("AgentR1/").removesuffix("-v0") + ".md"


def benchmark_of(id: str) -> str | None:
    """The real benchmark that an id plays, if it plays one."""
    name = gymnasium.spec(id).kwargs.get("benchmark")
    return name if name in CATALOG else None


def task_page(id: str, rows: list[dict]) -> str:
    own = [row for row in rows if row["id"] == id]
    name = benchmark_of(id)
    if name:
        return benchmark_page(id, name, own)
    if gymnasium.spec(id).kwargs.get("benchmark") == "own":
        return OWN
    try:
        return page(id, rows=own)
    except ImportError:
        return foreign_page(id)


def foreign_page(id: str) -> str:
    """A page about a task whose package is not installed here: what its class says, and what it pays."""
    module, _, name = gymnasium.spec(id).entry_point.partition(":")
    task = getattr(importlib.import_module(module), name)
    about, _, arguments = inspect.getdoc(task).replace("``", "`").partition("\n\nArgs:\n")
    presets = [f'Preset `rewards="{key}"`:\n\n```text\n{reward}\n```' for key, reward in task.PRESETS.items()]
    earns = f"## What it earns\n\n```text\n{task.REWARD}\n```"
    parts = [f"# {id}", about, earns, *presets, f"## Arguments\n\n```text\n{arguments}\n```"]
    return "\n\n".join(parts) + "\n"


def benchmark_page(id: str, name: str, rows: list[dict]) -> str:
    """A page about a real benchmark; no text of it is shown, as none of it is in this repository."""
    entry = CATALOG[name]
    splits = (
        '`split="train"` and `split="validation"`' if "train" in entry.official_files else '`split="validation"` only'
    )
    files = ", ".join(f"`{file}`" for split in entry.official_files.values() for file in split)
    own = (
        "The questions come with the paragraphs that are searched by default."
        if entry.own_passages
        else ("The questions come without passages: name some to search with `corpus=FILE`, or an index with `index=`.")
    )
    metrics = "`em` and `f1` as in the official script, over all aliases; `substring_em` to report, not to reward."
    if entry.own_passages:
        metrics += (
            " `support_recall`, `support_f1` and `joint_f1` are about paragraphs: which of the gold ones the searches"
            " brought up. A paragraph is told by its text where the files say it and the corpus has it, else by its"
            " title: then any paragraph under a gold title counts, once. The official support scores are about sentences"
            " that a system names, which this agent does not do; do not compare."
        )
    parts = [
        f"# {id}",
        f"{entry.title}: {ABOUT[name]} [{entry.homepage.removeprefix('https://')}]({entry.homepage})",
        f'```python\nenv = gymnasium.make("{id}", data="FOLDER")\n```',
        "The agent sees a question, searches a corpus over several turns and answers. What it may do and earns, and an "
        "episode, are those of [MiniWiki](MiniWiki.md).",
        "## Data",
        f"{splits}. Taken from `data=FOLDER`, from the folder in `AGENT_ENVS_DATA`, from the cache, or from the hub "
        f"(`{entry.repository}`), whichever has it first. A folder may hold the official files ({files}), FlashRAG's, "
        f"Search-R1's (`train.parquet`, `test.parquet`), or `{name}.<split>.jsonl` with `passages.jsonl`. {own}",
        *filter(None, [NOTES.get(name)]),
        "## Scores",
        metrics,
    ]
    if rows:
        played = (
            f'{rows[0]["episodes"]} questions of a working set, each once: {rows[0]["source"]}, `split="validation"`.'
        )
        parts += ["## Baselines", played, table(rows)]
    return "\n\n".join(parts) + "\n"


def measure_baselines(args: Args, kept: list[dict]) -> list[dict]:
    """The rows of all tasks: played now where that is possible, else as they were."""
    rows: list[dict] = []
    for id in agent_envs.IDS:
        before = [row for row in kept if row["id"] == id]
        kwargs = {"split": "validation"}
        if benchmark_of(id):
            have = args.data and (args.data / f"{benchmark_of(id)}.validation.jsonl").is_file()
            kwargs |= {"data": str(args.data)}
            if not have:
                rows += before
                continue
        episodes = 0 if benchmark_of(id) else args.episodes  # 0 is all of them
        try:
            rows += run_baselines(
                id, episodes, kwargs=kwargs, track=lambda work, id=id: track(work, id, transient=True)
            )
        except (ImportError, FileNotFoundError, RuntimeError) as error:
            print(f"{id} keeps its figures: {str(error).splitlines()[0]}")
            rows += before
    for row in rows:
        row["source"] = row["source"].replace(str(args.data), "data")
    return rows


def index_page(rows: list[dict]) -> str:
    lines = []
    for id in agent_envs.IDS:
        first = task_page(id, rows).split("\n\n")[1].split("\n")[0]
        lines.append(f"| [`{id}`]({file_name(id)}) | {first} |")
    return "\n".join(
        [
            "# The tasks\n",
            "| id | |\n|---|---|",
            *lines,
            "\n## Baselines\n",
            'Held-out instances (`split="validation"`), 200 episodes each, and real questions all of them, once: a random agent '
            "that writes well-formed turns, one that gives the best constant answer, a scripted one that knows no more than an "
            "agent may, and an oracle that knows the answer. The score is the task's own measure. Command: "
            "`python -m benchmarks.envs.task_pages --data FOLDER`.\n",
            table(rows),
            "",
        ]
    )


def main(args: Args) -> None:
    warnings.simplefilter("ignore")
    kept_file = DOCS / "baselines.json"
    kept = json.loads(kept_file.read_text(encoding="utf-8")) if kept_file.is_file() else []
    rows = measure_baselines(args, kept) if args.episodes else kept
    DOCS.mkdir(parents=True, exist_ok=True)
    kept_file.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for id in agent_envs.IDS:
        (DOCS / file_name(id)).write_text(task_page(id, rows), encoding="utf-8")
    (DOCS / "README.md").write_text(index_page(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Args))
