"""report.html in a real browser. Alone: python -m pytest -m browser tests/trainers/episodes/test_report_page.py"""

import json

import played_records as records
import pytest
from browser import PROGRAM, Browser
from played_records import HOSTILE, SUMMARY

from trainers.episodes.report import page as html_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed; CHROMIUM may name one"),
]
AGENTS = {"Oracle": "oracle", "Random": "random", "Scripted agent": "scripted"}
READER = "document.querySelector('#reader')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 120 episodes; one of them is hostile."""
    played = records.roll_out("AgentR1/MiniWiki-Easy-v0", AGENTS, 40)
    own = {"key": "hostile", "agent": "Hostile", "question": HOSTILE, "instance": 99}
    hostile = json.loads(json.dumps(played[0])) | own
    for message in hostile["messages"]:
        message["content"] = HOSTILE
    hostile["turns"][0]["calls"][0] |= {"tool": HOSTILE, "arguments": HOSTILE}
    hostile |= {"truncated": True, "supporting": [HOSTILE], "golds": [HOSTILE], "kind": {HOSTILE: HOSTILE}}
    for record in [record for record in played if record["agent"] == "Oracle"][:10]:
        record |= {"table": True, "step": 5}
    folder = records.write(tmp_path_factory.mktemp("page") / "run", [*played, hostile], tokens=True)
    rows = [SUMMARY["rows"][0], SUMMARY["rows"][1] | {"name": "Oracle"}]
    (folder / "summary.json").write_text(json.dumps(SUMMARY | {"source": HOSTILE, "rows": rows}))
    lines = ({"step": i, "seconds": 2.0 * i, "train/em": i / 10, "eval/em": i / 9} for i in range(9))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html_report.write_beside(folder)
    return folder


@pytest.fixture
def page(tmp_path):
    """A browser; afterwards nothing was complained of and nothing was asked for."""
    browser = Browser(tmp_path)
    yield browser
    assert browser.errors == [] and browser.requests == []
    browser.close()


def test_a_walk_through_the_page(page, folder):
    path, found = folder / "report.html", "document.querySelector('#found').textContent"
    page.resize(1440)
    page.open(path)
    assert page.run("document.querySelectorAll('.part tbody tr').length") == 2
    assert page.run("document.querySelectorAll('#main-charts canvas').length") >= 1
    page.run("document.querySelector('#more').open = true")
    page.wait("document.querySelectorAll('#more canvas').length == 2")

    assert page.run("[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth)")
    page.press("?")
    assert page.run("document.querySelector('#help').open")
    page.run("document.querySelector('#help').close()")
    page.run("document.querySelector('th[data-agent] a').click()")  # a row leads to the episodes of its table
    page.wait(f"{found} === '10 episodes, 100.0 % right'")
    assert page.run("document.querySelector('#by-step').value") == "table"
    assert page.run("document.querySelector('#by-step').innerText.split('\\n')") == [
        "all steps", "closing table", "step 0 (untrained)", "step 5",
    ]  # fmt: skip
    assert page.run("[...document.querySelectorAll('#by-kind option')].some((one) => one.textContent === '2 hops')")

    page.open(path)
    page.run("show('episodes')")  # filters and words leave what was asked for
    assert page.run(found).startswith("121 episodes")
    assert "Untrained policy · step 0" in page.run("row(episodes.find((e) => e.agent === 'Random'), 0).textContent")
    assert page.run("document.querySelectorAll('.row').length") < 40  # only those in sight are in the page
    page.run("document.querySelector('[data-outcome=truncated]').click()")
    assert page.run(found).startswith("1 episode,")
    page.open(path, "#view=episodes&agent=Oracle")
    assert page.run(found) == "40 episodes, 100.0 % right"
    title = page.run("readBody(episodes.find((e) => e.agent === 'Oracle')).then((body) => body.supporting.at(-1))")
    page.press("/")
    page.send("Input.insertText", text=title)
    page.wait(f"document.querySelector('#search').dataset.done === {json.dumps(title)}")
    assert 0 < page.run("shown.length") < 40
    assert page.run("shown.some((one) => !one.text.includes(state.q))")  # a tool returned it

    page.open(path, "#view=episodes&agent=Oracle")  # an episode has turns, evidence, rewards
    page.wait(f"{READER}.dataset.key")
    assert page.run(f"{READER}.querySelectorAll('.turn').length") == 3
    assert page.run(f"{READER}.querySelectorAll('.evidence .right').length") == 2
    assert page.run(f"{READER}.querySelectorAll('.terms .track i').length") >= 3
    page.press("x")
    page.wait(f"{READER}.querySelector('.turn .folded .text').textContent.includes('[1]')")
    assert page.run(f"{READER}.querySelectorAll('mark.gold').length") > 0
    colours = []
    for way in ("mask", "logprob", "advantage"):
        page.press("m")
        page.wait(f"document.querySelector('#show').value === '{way}'")
        tokens = f"[...{READER}.querySelectorAll('.t')]"
        colours.append(page.run(f"{tokens}.map((one) => getComputedStyle(one).backgroundColor)"))
    assert len(set(colours[0])) == 1 and len(set(colours[1])) > 3 and len(set(colours[2])) > 3
    page.press("c")  # another agent beside it
    page.wait(f"{READER}.querySelectorAll('.episode').length === 2")

    page.open(path, "#view=episodes&agent=Random")  # an address leads to an episode
    page.press("j")
    page.wait("opened === shown[1]")
    address, key = page.run("[location.hash, state.key]")
    page.resize(390)  # on a phone too, where nothing is wider than the window
    page.open(path, address)
    page.wait(f"{READER}.dataset.key === {json.dumps(key)}")
    assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0
    assert not page.run("document.querySelector('#pane').checkVisibility()")
    page.press("Escape")
    assert page.run("document.querySelector('#pane').checkVisibility()")


def test_hostile_text_is_text(page, folder):
    page.open(folder / "report.html", "#view=episodes&key=hostile&outcome=truncated")
    page.wait(f"{READER}.dataset.key === 'hostile'")
    page.press("x")
    for _ in range(3):
        assert "</script><script>alert(1)</script>" in page.run(f"{READER}.textContent")
        assert page.run(f"{READER}.querySelectorAll('script, img').length") == 0
        assert "\\x1b[2J" in page.run(f"{READER}.textContent") and "\\u202egnp" in page.run(f"{READER}.textContent")
        page.press("m")
        page.wait("document.querySelector('.tokens')")


def test_in_a_page_of_two_runs_an_address_leads_to_the_right_one(page, folder, tmp_path):
    """Episodes of two seeds have the same keys."""
    path = html_report.write([folder, folder], tmp_path / "both.html", episodes=0)
    page.open(path)
    page.run("show('episodes'), open(episodes.findLast((episode) => episode.part === 1))")
    address, key = page.run("[location.hash, state.key]")
    page.open(path, address)
    page.wait(f"opened?.key === {json.dumps(key)}")
    assert page.run("opened.part") == 1
