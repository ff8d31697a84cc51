"""The pages of docs/tasks say what the code does: each is made again and compared, but for the figures of baselines."""

import json
import warnings

import pytest

import agent_envs
from agent_envs.sandbox import SandboxError
from benchmarks.envs import task_pages

FOREIGN = {"AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0"}  # their pages depend on what is installed
ROWS = json.loads((task_pages.DOCS / "baselines.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("id", agent_envs.IDS)
def test_a_page_is_what_the_code_says(id):
    text = (task_pages.DOCS / task_pages.file_name(id)).read_text(encoding="utf-8")
    if id in FOREIGN:
        assert text.startswith(f"# {id}\n")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            page = task_pages.task_page(id, ROWS)
        except SandboxError as reason:
            pytest.skip(str(reason))
    assert text == page, "write the pages again: python -m benchmarks.envs.task_pages --episodes 0"


def test_every_task_that_can_be_played_here_has_baselines_and_a_line_in_the_table():
    played = {row["id"] for row in ROWS}
    without = "QA Bamboogle NQ TriviaQA PopQA ALFWorld WebShop".split()  # no questions, or no games, to measure on
    assert played == set(agent_envs.IDS) - {f"AgentR1/{name}-v0" for name in without}
    index = (task_pages.DOCS / "README.md").read_text(encoding="utf-8")
    assert all(f"[`{id}`]({task_pages.file_name(id)})" in index for id in agent_envs.IDS)
