"""The pages of docs/tasks state what the code does: each is made again and compared, except for the figures of baselines."""

import json
import warnings

import pytest

import agent_envs
from agent_envs.sandbox import SandboxError
from agent_envs.utils.describe import page
from benchmarks.envs import task_pages

ROWS = json.loads((task_pages.DOCS / "baselines.json").read_text(encoding="utf-8"))
FOREIGN = {"ALFWorld.md", "WebShop.md"}  # their episode depends on what is installed


@pytest.mark.parametrize("file", sorted(set(task_pages.pages()) - FOREIGN))
def test_a_page_is_what_the_code_states(file):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            text = task_pages.write_page(file, ROWS)
        except SandboxError as reason:
            pytest.skip(str(reason))
    there = (task_pages.DOCS / file).read_text(encoding="utf-8")
    assert there == text, "write the pages again: python -m benchmarks.envs.task_pages --episodes 0"


@pytest.mark.parametrize("file", sorted(FOREIGN))
def test_a_task_without_its_package_keeps_the_episode_of_its_page(file, monkeypatch):
    monkeypatch.setattr(task_pages, "page", lambda *given, **named: page("AgentR1/Missing-v0"))
    monkeypatch.setattr("agent_envs.utils.describe.make_tool_env", missing)
    there = (task_pages.DOCS / file).read_text(encoding="utf-8")
    assert task_pages.write_page(file, ROWS) == there and "--- agent\n" in there


def missing(id):
    raise ImportError("no such package")


def test_every_task_that_can_be_rolled_out_here_has_baselines_and_a_page():
    without = "QA Bamboogle NQ TriviaQA PopQA ALFWorld WebShop".split()  # no questions, or no games, to measure on
    assert {row["id"] for row in ROWS} == set(agent_envs.IDS) - {f"AgentR1/{name}-v0" for name in without}
    index = (task_pages.DOCS / "README.md").read_text(encoding="utf-8")
    assert all(f"[`{task_pages.name_of(id)}`]({task_pages.file_name(id)})" in index for id in agent_envs.IDS)
    assert {file.name for file in task_pages.DOCS.glob("*.md")} == set(task_pages.pages())
