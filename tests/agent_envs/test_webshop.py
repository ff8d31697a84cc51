"""WebShop, played against a small stand-in for its documented interface: the shop itself is not on any package index."""

import contextlib
import os
import random
import re
import sys

import pytest

from agent_envs.games.replay import read_menu
from agent_envs.tasks import webshop
from agent_envs.tasks.webshop import WebShopEnv, make_vector
from agent_envs.utils.scripts import roll_out

PRODUCTS = {f"B{i:03}": f"{kind} number {i}" for i, kind in enumerate(["shoe", "lamp", "mug"] * 10)}
OPTIONS = ["red", "extra [large]"]


class Server:
    def __init__(self, num_products):
        if num_products == 100000:
            raise FileNotFoundError("items_shuffle.json")
        print("Products loaded.")
        self.prices = {asin: random.uniform(5, 50) for asin in PRODUCTS}
        self.goals = [
            {"asin": asin, "name": name, "goal_options": {"color": "red"} if i % 2 else ["red"],
             "instruction_text": f"find me a {name}, and price lower than {self.prices[asin] + 5:.2f} dollars"}
            for i, (asin, name) in enumerate(list(PRODUCTS.items()) * (2 if num_products == 100 else 60))
        ]  # fmt: skip
        random.seed(233)
        random.shuffle(self.goals)
        self.user_sessions = {}


class WebAgentTextEnv:
    """What WebShop documents: pages as text, two actions, sessions by goal, a score at the purchase; and its habits: it draws
    from the program's own random generator, prints, ignores what it cannot do, and breaks on its internal shortcuts."""

    def __init__(self, observation_mode="html", server=None, session_prefix="", num_products=None, human_goals=None):
        assert observation_mode == "text"
        self.server, self.session_prefix = server or Server(num_products), session_prefix
        self.reset(random.randrange(len(self.server.goals)))

    def reset(self, session=None):
        self.session = f"{self.session_prefix}{session}"
        at = self.server.user_sessions.setdefault(self.session, {"goal": self.server.goals[session]})
        at |= {"page": "start", "asin": None, "options": set(), "found": []}
        return self._text(), None

    def get_available_actions(self):
        at = self.server.user_sessions[self.session]
        clickables = {
            "start": ["search"],
            "results": ["back to search", *(asin.lower() for asin in at["found"][:10])],
            "item": ["back to search", "< prev", "description", "buy now", *OPTIONS],
        }
        return {"has_search_bar": at["page"] == "start", "clickables": clickables.get(at["page"], [])}

    def step(self, action):
        at = self.server.user_sessions[self.session]
        name, value = re.match(r"(.+)\[(.+)\]", action.lower()).groups()
        reward, done = 0, False
        if name == "search":
            words = set(value.split(" "))
            if words & {"<r>", "<a>", "<c>", "<q>"}:
                raise TypeError("'NoneType' object is not subscriptable")
            hits = {asin: len(words & set(product.split())) for asin, product in PRODUCTS.items()}
            found = sorted((asin for asin, hit in hits.items() if hit), key=lambda asin: -hits[asin])
            at |= {"page": "results", "found": found, "options": set(), "query": value}
        elif value != "search" and value in self.get_available_actions()["clickables"]:
            if value == "buy now":
                goal, price = at["goal"], self.server.prices[at["asin"]]
                fits = price <= float(goal["instruction_text"].split()[-2])
                reward, done = sum([at["asin"] == goal["asin"], "red" in at["options"], fits]) / 3, True
                at["page"] = "done"
            elif value in ("back to search", "< prev"):
                at["page"] = "start" if value == "back to search" else "results"
            elif value.upper() in PRODUCTS:
                at |= {"page": "item", "asin": value.upper(), "options": set()}
            else:
                at["options"].add(value)
        return self._text(), reward, done, None

    def _text(self):
        at = self.server.user_sessions[self.session]
        parts = ["WebShop", "Instruction:", at["goal"]["instruction_text"], at["page"]]
        parts += [f"Current Query: {at.get('query')}"] * (at["page"] == "results")
        if at["asin"]:
            parts += [PRODUCTS[at["asin"]], f"Price: ${self.server.prices[at['asin']]:.2f}", *sorted(at["options"])]
        return " [SEP] ".join(parts)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """As if it were installed, for other processes too."""
    folder = tmp_path_factory.mktemp("shop") / "web_agent_site"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "envs.py").write_text(f"from {__name__} import WebAgentTextEnv")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder.parent))
        yield
    for name in ("web_agent_site", "web_agent_site.envs"):
        sys.modules.pop(name, None)


@pytest.fixture
def env(installed):
    env = WebShopEnv(max_turns=30)
    env.reset(seed=0)
    return env


def search(keywords):
    return f"<search>{keywords}</search>"


def click(element):
    return f"<click>{element}</click>"


def test_a_missing_shop_and_missing_products_are_explained(installed, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"items_shuffle.json.*setup.sh"):
        WebShopEnv(num_products=100_000).reset(seed=0)
    monkeypatch.setattr(webshop, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"clone https://github.com/princeton-nlp/WebShop"):
        WebShopEnv()


def test_both_checkers_have_nothing_to_say(installed):
    from agent_envs.utils.checker import check_agent_env

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        check_agent_env(WebShopEnv(max_turns=8, max_calls=3), steps=40)


def test_splits_are_those_of_the_baselines(installed):
    bounds = {"test": range(500), "validation": range(500, 1500), "train": range(1500, 1800)}
    for split, numbers in bounds.items():
        env = WebShopEnv(split)
        assert {env.reset(seed=seed)[1]["instance"] for seed in range(30)} <= set(numbers)
        assert env.reset(options={"instance": numbers[0]})[1]["instance"] == numbers[0]
        for outside in (numbers.start - 1, numbers.stop):
            with pytest.raises(ValueError, match="instance must be"):
                env.reset(options={"instance": outside})
    with pytest.raises(ValueError, match="with 60 goals there are none for 'validation'"):
        WebShopEnv("validation", num_products=100).reset(seed=0)


def test_the_program_keeps_its_own_random_numbers(installed, capsys):
    webshop.WebShopGame(1000, True)
    random.seed(1)
    expected = random.random()
    random.seed(1)
    webshop.WebShopGame(1000, True)
    assert random.random() == expected
    assert capsys.readouterr().out == ""


def test_pages_say_what_can_be_done(env):
    text, info = env.reset(options={"instance": 1500})
    assert info["source"] == "webshop" and "Instruction: [SEP] find me a" in text
    assert text.endswith("Search bar: yes\nElements: none")  # its "search" button is what the tool is for
    text = env.step(search("mug"))[0]
    assert "Search bar: no" in text and read_menu("Elements", text)[:2] == ["back to search", "b002"]
    text = env.step(click("B002"))[0]
    assert read_menu("Elements", text) == ["back to search", "< prev", "description", "buy now", "red"]


def test_the_purchase_pays_the_score_once(env):
    env.reset(options={"instance": 1500})
    goal = env.play.game.goal
    rewards = [env.step(search(goal["name"]))[1], env.step(click(goal["asin"]))[1]]
    _, reward, terminated, truncated, info = env.step(click("Buy Now"))
    assert rewards == [0.0, 0.0] and reward == pytest.approx(2 / 3)
    assert terminated is True and truncated is False
    assert info["score"] == reward and info["bought"] == 1.0 and info["success"] == 0.0


def test_what_the_shop_cannot_do_is_refused_in_words(env):
    done = list(env.play.actions)
    refused = {click(element): "no such element" for element in ("buy now", "search")}
    refused |= {search(words): "give keywords" for words in ("<r>", "  <A> leather", "[ ]", "\ud800", " ??")}
    for action, words in (refused | {search("shoe " * 200): "500 characters"}).items():
        observation, reward, terminated, _, info = env.step(action)
        assert words in observation and reward == 0.0 and not terminated and info["tool_faults"] == 0
    assert env.play.actions == done
    assert "\udfff" not in env.step(search("a [lamp]\n\udfffPlease"))[0]
    assert env.play.actions == ["search[a lamp please]"]
    assert "no search bar" in env.step(search("lamp"))[0]


def test_the_published_rewards(installed):
    env = WebShopEnv(max_turns=30, rewards="gigpo")
    env.reset(seed=0)
    assert env.step(click("nothing"))[1] == env.step("hello")[1] == -0.1
    assert roll_out(env, env.SCRIPTS["oracle"], 0)[-1]["reward"] == 10.0
    assert roll_out(env, env.SCRIPTS["scripted"], 0)[-1]["reward"] == 0.0


def test_attempts_at_one_goal_do_not_meet(installed):
    vector = make_vector(2)
    texts, _ = vector.reset(seed=[7, 7])
    assert texts[0] == texts[1]
    asin, name = (vector.envs[0].play.game.goal[key] for key in ("asin", "name"))
    vector.step([search(name), search("mug")])
    vector.step([click(asin), click("b002")])
    texts, _, _, _, _ = vector.step([click("red"), click("< prev")])
    assert name in texts[0] and "red" in texts[0] and "[b002]" in texts[1]
    _, rewards, terminated, _, _ = vector.step([click("buy now"), click("back to search")])
    assert rewards.tolist() == [1.0, 0.0] and terminated.tolist() == [True, False]
