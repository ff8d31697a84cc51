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
    folder = records.write(tmp_path_factory.mktemp("page") / "run", [*played, hostile], tokens=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY | {"source": HOSTILE}))
    lines = ({"step": i, "seconds": 2.0 * i, "train/em": i / 10, "eval/em": i / 9} for i in range(9))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html_report.write_beside(folder)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser, folder):
    """Opens the page; afterwards nothing was complained of and nothing was asked for."""

    def open_at(fragment="", width=1440):
        browser.resize(width)
        browser.open(folder / "report.html", fragment)
        browser.run("localStorage.clear()")
        return browser

    yield open_at
    assert browser.errors == [] and browser.requests == []


def test_it_opens_with_table_and_curves(open_page):
    page = open_page()
    assert page.run("document.querySelectorAll('.part tbody tr').length") == 2
    assert page.run("document.querySelectorAll('#main-charts canvas').length") >= 1
    assert page.run("document.querySelector('#episodes').hidden")
    page.run("document.querySelector('#more').open = true")
    page.wait("document.querySelectorAll('#more canvas').length == 2")
    # Potential-based terms add up to nothing, up to rounding: they have no bar.
    assert page.run("bars({ progress: 0.1 + 0.1 + 0.1 - 0.3, answer: 1 }, [1]).textContent").startswith("answer")


def test_filters_and_search_leave_what_was_asked_for(open_page):
    page = open_page("#view=episodes")
    found = "document.querySelector('#found').textContent"
    assert page.run(found).startswith("121 episodes")
    assert page.run("document.querySelectorAll('.row').length") < 40  # only those in sight are in the page
    page.run("document.querySelector('[data-outcome=truncated]').click()")
    assert page.run(found).startswith("1 episode,")
    page.run("document.querySelector('[data-outcome=\"\"]').click()")
    page.run(
        "(() => { const by = document.querySelector('#by-agent'); by.value = 'Oracle'; by.dispatchEvent(new Event('change')) })()"
    )
    assert page.run(found) == "40 episodes, 100.0 % right"
    title = page.run("readBody(episodes.find((e) => e.agent === 'Oracle')).then((body) => body.supporting.at(-1))")
    page.press("/")
    page.send("Input.insertText", text=title)
    page.wait(f"document.querySelector('#search').dataset.done === {json.dumps(title)}")
    assert 0 < page.run("shown.length") < 40
    assert page.run("shown.some((one) => !one.text.includes(state.q))")  # a tool returned it


def test_an_episode_opens_with_its_turns_evidence_and_rewards(open_page):
    page = open_page("#view=episodes&agent=Oracle")
    page.wait(f"{READER}.dataset.key")
    assert page.run(f"{READER}.querySelectorAll('.turn').length") == 3
    assert page.run(f"{READER}.querySelectorAll('.evidence .right').length") == 2
    assert page.run(f"{READER}.querySelectorAll('.terms .track i').length") >= 3
    assert not page.run(f"[...{READER}.querySelectorAll('.folded')].some((one) => one.open)")
    page.press("x")
    page.wait(f"{READER}.querySelector('.turn .folded .text').textContent.includes('[1]')")
    assert page.run(f"{READER}.querySelectorAll('mark.gold').length") > 0
    first = page.run("state.key")
    page.press("j")
    page.wait(f"{READER}.dataset.key !== {json.dumps(first)}")
    page.press("k")
    page.wait(f"{READER}.dataset.key === {json.dumps(first)}")
    page.press("c")  # another agent beside it
    page.wait(f"{READER}.querySelectorAll('.episode').length === 2")
    labels = page.run(f"[...{READER}.querySelectorAll('.episode')].map((one) => one.getAttribute('aria-label'))")
    assert labels == ["Oracle", "Random"]
    page.press("c")
    page.wait(f"{READER}.querySelectorAll('.episode').length === 1")


def test_tokens_are_coloured_three_ways(open_page):
    page = open_page("#view=episodes&agent=Oracle")
    page.wait(f"{READER}.dataset.key")
    colours = []
    for way in ("mask", "logprob", "advantage"):
        page.press("m")
        page.wait(f"document.querySelector('#show').value === '{way}'")
        tokens = f"[...{READER}.querySelectorAll('.t')]"
        colours.append(page.run(f"{tokens}.map((one) => getComputedStyle(one).backgroundColor)"))
        assert page.run(f"{tokens}.every((one) => /token \\d+, turn \\d/.test(one.title))")
    assert len(set(colours[0])) == 1 and len(set(colours[1])) > 3 and len(set(colours[2])) > 3


def test_hostile_text_is_text(open_page):
    page = open_page("#view=episodes&key=hostile&outcome=truncated")
    page.wait(f"{READER}.dataset.key === 'hostile'")
    page.press("x")
    for _ in range(3):
        assert "</script><script>alert(1)</script>" in page.run(f"{READER}.textContent")
        assert page.run(f"{READER}.querySelectorAll('script, img').length") == 0
        assert "\\x1b[2J" in page.run(f"{READER}.textContent") and "\\u202egnp" in page.run(f"{READER}.textContent")
        page.press("m")
        page.wait("document.querySelector('.tokens')")


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_nothing_is_wider_than_the_window(open_page, width):
    page = open_page("", width)
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert page.run(wide) <= 0
    page.run("show('episodes'); open(shown[0])")
    page.wait(f"{READER}.dataset.key")
    assert page.run(wide) <= 0 and page.run(f"{READER}.scrollWidth <= {READER}.clientWidth")
    if width == 390:
        assert not page.run("document.querySelector('#pane').checkVisibility()")
        page.press("Escape")
        assert page.run("document.querySelector('#pane').checkVisibility()")


def test_an_address_leads_to_an_episode(open_page):
    page = open_page("#view=episodes&agent=Random")
    page.press("j")
    page.wait("opened === shown[1]")
    address, key = page.run("[location.hash, state.key]")
    page = open_page(address)
    page.wait(f"{READER}.dataset.key === {json.dumps(key)}")
    assert page.run("document.querySelector('#by-agent').value") == "Random"
    page = open_page("#view=episodes&q=search%3E")  # words are looked for in conversations
    page.wait("document.querySelector('#search').dataset.done === 'search>'")
    assert page.run("shown.length") > 40


def test_in_a_page_of_two_runs_an_address_leads_to_the_right_one(browser, folder, tmp_path):
    """Episodes of two seeds have the same keys."""
    path = html_report.write([folder, folder], tmp_path / "both.html", episodes=0)
    browser.resize(1440)
    browser.open(path)
    browser.run("show('episodes'), open(episodes.findLast((episode) => episode.part === 1))")
    address, key = browser.run("[location.hash, state.key]")
    assert browser.run(f"episodes.filter((episode) => episode.key === {json.dumps(key)}).length") == 2
    browser.open(path, address)
    browser.wait(f"opened?.key === {json.dumps(key)}")
    assert browser.run("opened.part") == 1
