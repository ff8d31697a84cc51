"""Write the pages of docs/tasks: one for each task, one for the seven search benchmarks, and a table of all tasks.

    python -m benchmarks.envs.task_pages --data FOLDER      # FOLDER with real benchmarks; without it they keep their figures

Everything on a page except its baselines is generated from the code; a test compares both. The rows of the baselines are kept
in docs/tasks/baselines.json, so that ``--episodes 0`` writes pages without rolling out. If the package of a task is missing, its
page keeps its episode.
"""

import importlib
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import tyro
from rich.progress import track

import agent_envs
from agent_envs.data.catalog import CATALOG
from agent_envs.integrations.hosting import make
from agent_envs.utils.baselines import run_baselines, table
from agent_envs.utils.describe import assemble, fence, page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "tasks"
TEXTS = Path(__file__).with_name("task_texts")  # text that is not in the code: the search benchmarks, MiniWiki
SEARCH = {  # the kind of questions
    "HotpotQA": "two Wikipedia paragraphs, bridge and comparison (Yang et al. 2018)",
    "2WikiMultihopQA": "compositional, comparison, inference, from Wikidata (Ho et al. 2020)",
    "MuSiQue": "two to four hops without shortcuts (Trivedi et al. 2022)",
    "Bamboogle": "125 two-hop questions that search engines fail (Press et al. 2023)",
    "NQ": "real queries, short answers (Kwiatkowski et al. 2019; open form, Lee et al. 2019)",
    "TriviaQA": "trivia, many aliases (Joshi et al. 2017)",
    "PopQA": "entities of the long tail, from Wikidata (Mallen et al. 2023)",
}
SHORT = {  # a line of the table of all tasks
    "MiniWiki": "fictional Wikipedia, one to three articles",
    "MiniWiki-Easy": "always two articles",
    "MiniWiki-Hard": "two to four, misleading sentences",
    "Calculator": "word problems, or GSM8K",
    "Python": "puzzles, by programs in the sandbox",
    "SQL": "questions about a database",
    "API": "customer service under a policy",
    "Mixed": "search, database and calculator",
    "Bandit": "the riskier of two names",
    "Sokoban": "push boxes onto targets",
    "FrozenLake": "slippery ice with holes",
    "Countdown": "reach a target with given numbers",
    "ALFWorld": "household tasks in text",
    "WebShop": "buy what is asked for",
    "Mixture": "several tasks, drawn by weight",
}
SEEDS = {
    "API": 36,
    "Mixed": 5,
    "FrozenLake": 18,
    "MiniWiki": 49,
    "Calculator": 18,
    "Python": 9,
}  # seeds of the shown episodes; 0 for other tasks
AGENTS = ["random", "constant", "scripted", "reader", "oracle"]
MINIWIKI = ["MiniWiki", "MiniWiki-Easy", "MiniWiki-Hard"]
TURNS = re.compile(r"In each turn you may think inside[^\n]*")  # text that the format adds to every prompt:
ENDS = re.compile(
    r"^(- <answer>text</answer>: |Results come back inside).*\n", re.MULTILINE
)  # only MiniWiki's page shows both
LONG = 1500  # longest prompt on a page, in characters


@dataclass
class Args:
    """Write the task pages."""

    episodes: int = 200
    """Episodes of each baseline; 0 keeps the existing figures. In real benchmarks, every question is asked once instead."""
    data: Path | None = None
    """Folder with HotpotQA, 2WikiMultihopQA and MuSiQue, to measure baselines on their validation questions."""


def name_of(id: str) -> str:
    return id.removeprefix("AgentR1/").removesuffix("-v0")


def file_name(id: str) -> str:
    """Return the page of an id, as docs/tasks links it."""
    name = name_of(id)
    if name in SEARCH:
        return "search_benchmarks.md"
    return {"QA": "../own_data.md", **dict.fromkeys(MINIWIKI, "MiniWiki.md")}.get(name, f"{name}.md")


def write_page(file: str, rows: list[dict]) -> str:
    """Return the text of a page of docs/tasks."""
    if file == "README.md":
        return index_page(rows)
    if file == "search_benchmarks.md":
        return search_page(rows)
    id = f"AgentR1/{file.removesuffix('.md')}-v0"
    own = [row for row in rows if file_name(row["id"]) == file]
    about = (TEXTS / "MiniWiki.md").read_text(encoding="utf-8").strip() if name_of(id) == "MiniWiki" else ""
    scores = f"\n## Baselines\n\n{baselines(own)}\n" if own else ""
    try:
        text = page(id, seed=SEEDS.get(name_of(id), 0), about=about) + scores
        if name_of(id) == "Mixture":  # its episodes and rewards are those of its tasks
            text = re.sub(r" The episode below.*?(?=\n\n## Rewards)|```text.*?```\n\n", "", text, flags=re.DOTALL)
        return link_arguments(text if name_of(id) == "MiniWiki" else shorten_prompt(link_rewards(text)))
    except ImportError:
        there = (DOCS / file).read_text(encoding="utf-8") if (DOCS / file).is_file() else ""
        episode = re.search(r"^## An episode\n\n(.*?)\n\n## ", there, flags=re.DOTALL | re.MULTILINE)
        return page_of_class(id, episode[1] if episode else "")


def page_of_class(id: str, episode: str = "") -> str:
    """The page of a task that cannot be made because a package is missing; ``episode`` was recorded elsewhere."""
    module, _, name = str(gymnasium.spec(id).entry_point).partition(":")
    task = getattr(importlib.import_module(module), name)
    return assemble(id, task, None, "", [], episode, str(task.REWARD))


def shorten_prompt(text: str) -> str:
    """Shorten the prompt of a page: without the text of every prompt, and with "…" for all after ``LONG`` characters."""
    prompt = text.partition("--- system\n")[2].partition("--- observation\n")[0]
    own = ENDS.sub("", TURNS.sub("…", prompt))
    if len(own) > LONG:
        own = own[:LONG].rpartition("\n")[0] + " …\n"
    return text.replace(prompt, own, 1) if prompt else text


def link_rewards(text: str) -> str:
    """Replace the reward terms of a page by a link, if they are the same as Calculator's."""
    terms = fence(str(make("AgentR1/Calculator-v0").reward))
    if text.startswith("# AgentR1/Calculator-v0\n"):
        return text
    return text.replace(f".\n\n{terms}", ". The terms are [Calculator's](Calculator.md#rewards).")


def link_arguments(text: str) -> str:
    """Remove the arguments that the overview of all tasks explains from a page; those of passages become a link."""
    text = re.sub(r"^- split=\"train\": `\"train\"` or `\"validation\"`\.\n", "", text, flags=re.MULTILINE)
    passages = re.compile(r"(?:^- (?:k|max_chars|passage_tokens|read)(?:=\S+)?: .*\n){2,}", re.MULTILINE)
    return passages.sub("- [Passages](../environments.md#passages): arguments of the search.\n", text)


def search_page(rows: list[dict]) -> str:
    """Return the page of the seven search benchmarks. It has no episode, as this repository contains none of their texts."""
    lines = []
    for name, asked in SEARCH.items():
        entry = CATALOG[name.lower()]
        splits = "train, validation" if "train" in entry.official_files else "validation"
        files = ", ".join(f"`{file}`" for split in entry.official_files.values() for file in split)
        own = "yes" if entry.own_passages else "no"
        lines.append(f"| [`{name}`]({entry.homepage}) | {asked} | {splits} | {own} | `{entry.repository}` | {files} |")
    scores = baselines([row for row in rows if name_of(row["id"]) in SEARCH])
    text = (TEXTS / "search_benchmarks.md").read_text(encoding="utf-8")
    return text.format(benchmarks="\n".join(lines), baselines=scores)


def baselines(rows: list[dict]) -> str:
    """Return a table with a line for each task and a column for each agent; for a single task, a sentence."""
    agents = [agent for agent in AGENTS if any(row["agent"] == agent for row in rows)]
    if len(rows) == len(agents):  # of one task
        cells = ["{agent} {score:.3f} ({interval[0]:.3f}–{interval[1]:.3f})".format(**row) for row in rows]
        return f"Held-out score (95% CI): {', '.join(cells)}."
    lines = [f"| held-out score (95% CI) | {' | '.join(agents)} |", "|---" + "|---:" * len(agents) + "|"]
    for id in dict.fromkeys(row["id"] for row in rows):
        own = {row["agent"]: row for row in rows if row["id"] == id}
        cells = ["{score:.3f} ({interval[0]:.3f}–{interval[1]:.3f})".format(**own[agent]) for agent in agents]
        lines.append(f"| {name_of(id)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def index_page(rows: list[dict]) -> str:
    scores = {(name_of(row["id"]), row["agent"]): f"{row['score']:.2f}" for row in rows}
    lines = ["| [`QA`](../own_data.md) | your own questions | – | – | – |"]
    for name in [*SEARCH, *SHORT]:
        cells = [scores.get((name, agent), "–") for agent in ("random", "scripted", "oracle")]
        about = SHORT.get(name) or re.split(r" \(|, |;", SEARCH[name])[0]
        lines.append(f"| [`{name}`]({file_name(f'AgentR1/{name}-v0')}) | {about} | {' | '.join(cells)} |")
    return (TEXTS / "README.md").read_text(encoding="utf-8").format(tasks="\n".join(lines))


def measure_baselines(args: Args, kept: list[dict]) -> list[dict]:
    """Measure the rows of all tasks; tasks that cannot be measured keep their rows in ``kept``."""
    rows: list[dict] = []
    for id in agent_envs.IDS:
        before = [row for row in kept if row["id"] == id]
        kwargs, real = {"split": "validation"}, name_of(id) in SEARCH
        if real:
            have = args.data and (args.data / f"{gymnasium.spec(id).kwargs['benchmark']}.validation.jsonl").is_file()
            kwargs |= {"data": str(args.data)}
            if not have:
                rows += before
                continue
        episodes = 0 if real else args.episodes  # 0 is all of them
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


def pages() -> list[str]:
    """List the files of docs/tasks."""
    own = (file_name(id) for id in agent_envs.IDS)
    return ["README.md", *dict.fromkeys(file for file in own if not file.startswith(".."))]


def main(args: Args) -> None:
    warnings.simplefilter("ignore")
    kept = json.loads((DOCS / "baselines.json").read_text(encoding="utf-8"))
    rows = measure_baselines(args, kept) if args.episodes else kept
    (DOCS / "baselines.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for file in pages():
        (DOCS / file).write_text(write_page(file, rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main(tyro.cli(Args))
