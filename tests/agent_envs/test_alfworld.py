"""ALFWorld and TextWorld: real games where the libraries are installed, clear words where they are not."""

import json
import pickle
import random
import sys

import pytest

from agent_envs.games import replay
from agent_envs.games.textworld import _clean_text, find_games, short_name
from agent_envs.tasks import alfworld
from agent_envs.tasks.alfworld import ALFWorldEnv
from agent_envs.utils.scripts import roll_out


def say(*commands):
    return "".join(f"<act>{command}</act>" for command in commands)


@pytest.fixture
def fakes(tmp_path):
    """Files that look like games from outside."""
    for i in range(30):
        (tmp_path / f"game{i:02}.json").write_text(json.dumps({"game": i}))
        (tmp_path / f"game{i:02}.z8").write_bytes(bytes([i]))
    return tmp_path


def test_missing_packages_are_named(fakes, monkeypatch):
    monkeypatch.setattr(alfworld, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="textworld, fast_downward, alfworld: pip install alfworld"):
        ALFWorldEnv()
    with pytest.raises(ImportError, match="need textworld: pip install textworld"):
        ALFWorldEnv(games=str(fakes))
    (fakes / "game.tw-pddl").write_text("{}")
    with pytest.raises(ImportError, match="pip install alfworld"):
        ALFWorldEnv(games=str(fakes), split="all")


def test_missing_games_are_explained_and_bad_arguments_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(alfworld, "find_spec", lambda name: name)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    cases = [
        ({"split": "eval_out_of_distribution"}, r"nowhere/json_2.1.1/valid_unseen: run `alfworld-download`"),
        ({"data": str(tmp_path / "elsewhere")}, r"elsewhere/json_2.1.1/train"),
        ({"games": str(tmp_path / "nothing")}, "there is no"),
        ({"games": str(tmp_path)}, "no game"),
    ]
    for arguments, message in cases:
        with pytest.raises(FileNotFoundError, match=message):
            ALFWorldEnv(**arguments)
    (tmp_path / "zork.z8").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"lacks zork.json"):
        ALFWorldEnv(games=str(tmp_path), split="all")
    for arguments in ({"split": "test"}, {"split": "all"}, {"games": "x", "data": "y"}):
        with pytest.raises(ValueError):
            ALFWorldEnv(**arguments)


def test_games_are_split_by_what_they_are(fakes, tmp_path_factory):
    train, validation = find_games(str(fakes), "train"), find_games(str(fakes), "validation")
    assert len(train) > 5 and len(validation) > 5 and set(train).isdisjoint(validation)
    assert sorted(train + validation) == list(find_games(str(fakes), "all"))
    copy = tmp_path_factory.mktemp("copy")
    for suffix in ("json", "z8"):
        (copy / f"renamed.{suffix}").write_bytes((fakes / f"game00.{suffix}").read_bytes())
    own, other = ("train", "validation") if str(fakes / "game00.z8") in train else ("validation", "train")
    assert find_games(str(copy), own) == (str(copy / "renamed.z8"),)
    with pytest.raises(ValueError, match=f"the only game.*belong.* to '{own}', none to '{other}'"):
        find_games([str(copy / "renamed.z8")], other)


def test_interpreter_chatter_is_left_out_and_menus_are_read_as_they_are_written():
    text = "\n\n   ____  __ \n  |  $$\\|>$ |\n\nA room.  \n\n\n\nAn exit | a door.\n\n>     -= Room =-0/1\n"
    assert _clean_text(text) == "A room.\n\nAn exit | a door." and _clean_text("") == ""
    won = "Won.\n  *** The End ***\nWould you like to RESTART or QUIT?\n> -= x =-"
    assert _clean_text(won) == "Won.\n*** The End ***"
    text = "a [b] Commands: [no]\n" + replay.menu("Commands", ["go east", "open it's box ", "a\nb"])
    assert replay.read_menu("Commands", f'<information>{text}</information>"]') == ["go east", "open it's box", "a b"]
    assert replay.read_menu("Commands", "[x] " + replay.menu("Commands", [])) == []


class Counter:
    """A game that cannot be pickled."""

    made = 0

    def __init__(self):
        Counter.made += 1
        self.function = lambda x: x + 1

    def reset(self, instance):
        self.value = instance

    def step(self, action):
        self.value = self.function(self.value) if action == "up" else 0


def test_a_replay_does_everything_again_in_the_copy():
    played = replay.Replay(Counter)
    played.reset(5)
    played.step("up"), played.step("up")
    made = Counter.made
    copy = pickle.loads(pickle.dumps(played))
    assert Counter.made == made  # not before it is needed
    assert copy.game.value == played.game.value == 7 and Counter.made == made + 1
    copy.step("up")
    assert (copy.game.value, played.game.value) == (8, 7)
    copy.reset(1)
    assert pickle.loads(pickle.dumps(copy)).game.value == 1
    pickle.loads(pickle.dumps(replay.Replay(Counter))).reset(3)


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    textworld = pytest.importorskip("textworld")
    folder = tmp_path_factory.mktemp("games")
    for seed in (1, 2):
        options = textworld.GameOptions()
        options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, 2, 3, 3
        options.path = str(folder / f"game{seed}.z8")
        textworld.make(options)
    return str(folder)


@pytest.fixture
def env(games):
    env = ALFWorldEnv(games=games, split="all", max_turns=20)
    env.reset(seed=0, options={"instance": 0})
    return env


def test_both_checkers_have_nothing_to_say(games):
    from agent_envs.utils.checker import check_agent_env

    check_agent_env(ALFWorldEnv(games=games, split="all", max_turns=8, max_calls=2), steps=60)


def test_the_walkthrough_wins_every_game_and_pays_one(games):
    env = ALFWorldEnv(games=games, split="all")
    for instance in range(len(env.files)):
        episode = roll_out(env, env.SCRIPTS["oracle"], 0, options={"instance": instance})
        assert [turn["reward"] for turn in episode] == [0.0] * (len(episode) - 1) + [1.0]
        last = episode[-1]
        assert last["terminated"] is True and last["success"] == last["score"] == last["won"] == 1.0
        assert "The End" in last["next_observation"] and "Commands" not in last["next_observation"]


def test_the_first_observation_sets_the_task_and_lists_commands(env):
    text, info = env.reset(options={"instance": 1})
    assert info["game"] == "game2" and info["instance"] == 1 and info["source"] == "textworld"
    assert "$" not in text and "\n>" not in text and "-=" in text
    assert "look" in replay.read_menu("Commands", text)


def test_only_listed_commands_reach_the_game(env):
    winning = list(env.play.game.walkthrough)
    env.step(say(winning[0]))
    before = list(env.play.actions)
    for command in ("undo", "restart", "quit", "save", "tw-print *", "xyzzy", f"{winning[1]}. undo", "é日\udcff", ">"):
        observation, reward, terminated, truncated, _ = env.step(say(command))
        assert "Nothing happens." in observation and reward == 0.0 and not terminated and not truncated
        assert replay.read_menu("Commands", observation) == env.play.game.commands
    assert env.play.actions == before
    env.step(say(f"  {winning[1].upper()} "))  # capitals and white space are forgiven
    assert env.play.actions == winning[:2]


def test_the_published_penalty_for_commands_that_are_not_listed(games):
    env = ALFWorldEnv(games=games, split="all", rewards="gigpo", max_turns=9)
    env.reset(seed=0)
    assert env.step(say("fly"))[1] == env.step("no tag")[1] == -0.1
    assert env.step(say("look"))[1] == 0.0
    assert roll_out(env, env.SCRIPTS["oracle"], 0)[-1]["reward"] == 10.0


def test_a_game_without_a_walkthrough_says_so(env):
    env.play.game.walkthrough = None
    with pytest.raises(ValueError, match="without a walkthrough"):
        next(env.SCRIPTS["oracle"](env, random.Random(0)))


PLACES = {"Shelf_bar_1": "ShelfType", "Drawer_bar_1": "DrawerType", "Fridge_bar_1": "FridgeType"}
PROBLEM = f"""
(define (problem tiny) (:domain alfred)
(:objects agent1 - agent Mug_bar_1 Mug_bar_2 - object MugType KnifeType ButterKnifeType - otype
 {" ".join(PLACES)} - receptacle {" ".join(PLACES.values())} SinkBasinType MicrowaveType - rtype
 {" ".join(f"At{name}" for name in PLACES)} Middle - location)
(:init (= (total-cost) 0) (atLocation agent1 Middle)
 {" ".join(f"(receptacleType {name} {kind}) (canContain {kind} MugType)" for name, kind in PLACES.items())}
 {" ".join(f"(receptacleAtLocation {name} At{name})" for name in PLACES)}
 (openable Drawer_bar_1) (openable Fridge_bar_1)
 {" ".join(f"(objectType {mug} MugType) (pickupable {mug})" for mug in ("Mug_bar_1", "Mug_bar_2"))}
 (inReceptacle Mug_bar_1 Shelf_bar_1) (objectAtLocation Mug_bar_1 AtShelf_bar_1)
 (inReceptacle Mug_bar_2 Shelf_bar_1) (objectAtLocation Mug_bar_2 AtShelf_bar_1))
(:goal (exists (?r - receptacle ?o - object)
 (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r GOAL))))
(:metric minimize (total-cost)))
"""
PLANS = {
    "Drawer": ["go to shelf 1", "take mug 1 from shelf 1", "go to drawer 1", "open drawer 1", "move mug 1 to drawer 1"],
    "Fridge": ["go to shelf 1", "take mug 2 from shelf 1", "go to fridge 1", "open fridge 1", "move mug 2 to fridge 1"],
}


def write_game(folder, place, solvable=True):
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    folder.mkdir(parents=True)
    with open(ALFRED_PDDL_PATH) as domain, open(ALFRED_TWL2_PATH) as grammar:
        game = {
            "pddl_domain": domain.read(),
            "grammar": grammar.read().replace("UNKNOWN GOAL", f"put a mug in {place.lower()}"),
            "pddl_problem": PROBLEM.replace("GOAL", f"{place}Type"),
            "solvable": solvable,
            "walkthrough": PLANS[place],
        }
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_simple"}))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The layout of ALFWorld's data, with games over its own logic and grammar."""
    for name in ("alfworld", "fast_downward"):
        pytest.importorskip(name)
    root = tmp_path_factory.mktemp("data")
    train, seen = root / "json_2.1.1" / "train", root / "json_2.1.1" / "valid_seen"
    write_game(train / "pick_and_place_simple-Mug-None-Drawer-1" / "trial_T1", "Drawer")
    write_game(train / "pick_and_place_simple-Mug-None-Fridge-1" / "trial_T2", "Fridge")
    write_game(train / "pick_and_place_simple-Mug-None-Fridge-2" / "trial_T3", "Fridge", solvable=False)
    write_game(train / "pick_and_place_simple-MugSliced-None-Fridge-3" / "trial_T4", "Fridge")
    write_game(seen / "pick_and_place_simple-Mug-None-Fridge-4" / "trial_T5", "Fridge")
    return str(root)


def test_alfworld_says_which_games_there_are(data, capsys):
    found = {split: ALFWorldEnv(split, data=data).files for split in ("train", "validation")}
    names = {split: [short_name(file) for file in files] for split, files in found.items()}
    train = ["pick_and_place_simple-Mug-None-Drawer-1/trial_T1", "pick_and_place_simple-Mug-None-Fridge-1/trial_T2"]
    assert names == {"train": train, "validation": ["pick_and_place_simple-Mug-None-Fridge-4/trial_T5"]}
    assert capsys.readouterr() == ("", "")


def test_alfworld_plays_with_readable_names(data, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "3"])
    env = ALFWorldEnv(data=data)
    text, info = env.reset(options={"instance": 0})
    assert "Your task is to: put a mug in drawer." in text and info["source"] == "alfworld"
    assert "[go to drawer 1] [go to fridge 1] [go to shelf 1]" in text and "_bar_" not in text
    assert "you see a mug 2, and a mug 1" in env.step(say("go to shelf 1"))[0]
    assert sys.argv == ["train.py", "--steps", "3"]


def test_alfworld_is_won_by_its_walkthrough(data):
    env = ALFWorldEnv(data=data)
    for instance in (0, 1, 1, 0):
        episode = roll_out(env, env.SCRIPTS["oracle"], 0, options={"instance": instance})
        assert [turn["reward"] for turn in episode] == [0.0] * 4 + [1.0] and episode[-1]["terminated"]
