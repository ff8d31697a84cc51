"""Tools of an MCP server, on a real one."""

import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from broken_envs import Digit

from agent_envs.tools import mcp as mounted
from agent_envs.tools import run_calls
from agent_envs.tools.mcp import mount
from agent_envs.types import ToolCall, ToolResult
from agent_envs.utils.checker import check_agent_env
from agent_envs.vector import ToolVectorEnv

pytest.importorskip("mcp")

SEED = int(os.environ.get("ATTACK_SEED", "0"))

SERVER = """
import os, sys
from mcp.server import MCPServer

server = MCPServer("toys", log_level="CRITICAL")
notes = []

def add(a: int, b: int = 2) -> int:
    "Add two numbers."
    return a + b

def note(text: str, tags: list[str] | None = None) -> str:
    notes.append(text)
    return f"{len(notes)} {text} {tags}"

def broken(why: str) -> str:
    raise ValueError(why)

def flood() -> str:
    return "x" * 1_000_000

def who() -> int:
    return os.getpid()

for tool in (add, note, broken, flood, who):
    server.tool()(tool)
server.run("streamable-http", port=int(sys.argv[1])) if len(sys.argv) > 1 else server.run()
"""
NAMES = ["add", "note", "broken", "flood", "who"]
ANY = {"type": "object"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The client's own patience with a program that does not leave."""
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{name}", 0.3)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    script = tmp_path_factory.mktemp("mcp") / "server.py"
    script.write_text(SERVER)
    return [sys.executable, str(script)]


@pytest.fixture(scope="module")
def tools(command):
    """All tools by name, over one connection for the module."""
    tools = {tool.name: tool for tool in mount(command)}
    yield tools
    tools["add"].connection.close()


def call(tools, name, **arguments) -> ToolResult:
    return run_calls([(tools, ToolCall(name, arguments))])[0]


def test_what_the_server_lists(command, tools):
    assert list(tools) == NAMES and tools["add"].description == "Add two numbers."
    assert tools["add"].parameters["required"] == ["a"] and tools["add"].parameters["properties"]["b"]["default"] == 2
    assert [tool.name for tool in mount(command, only=["note", "add"])] == ["note", "add"]
    with pytest.raises(ValueError, match=r"no tools \['nope'\]; it has \['add', 'broken'"):
        mount(command, only=["add", "nope"])


def test_calls_and_what_is_the_agents_mistake(tools):
    assert call(tools, "add", a=1) == ToolResult("3", data={"result": 3})
    assert call(tools, "note", text="Zürich 🦊", tags=["a", "b"]).text.endswith("Zürich 🦊 ['a', 'b']")
    results = tools["add"].execute_batch([{"a": i} for i in range(20)])
    assert [result.text for result in results] == [str(i + 2) for i in range(20)]
    for result, problem in (
        (call(tools, "add", a="one"), "'one' is not of type 'integer'"),
        (tools["add"].execute_batch([{"a": "one"}])[0], "valid integer"),  # the server itself finds so too
        (call(tools, "broken", why="because"), "broken"),
    ):
        assert (result.ok, result.fault) == (False, False) and problem in result.text
    assert len(call(tools, "flood").text) < 21_000 and "1000000 characters" in call(tools, "flood").text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00\u2028\n", "x" * 300_000, '{"jsonrpc": "2.0"}\n'])
def test_no_text_of_an_agent_breaks_the_connection(tools, text):
    before = call(tools, "who").text
    assert call(tools, "note", text=text, tags=[text]).ok
    assert call(tools, "who").text == before


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (["/no/such/program"], "cannot be reached: FileNotFoundError"),
        ([sys.executable, "-c", "pass"], "cannot be reached: MCPError: Connection closed"),
        ([sys.executable, "-c", "print('hello')"], "cannot be reached: MCPError: Connection closed"),
        ("http://127.0.0.1:9/mcp", "cannot be reached: ConnectError"),
    ],
)
def test_a_server_that_is_none(server, problem):
    with pytest.raises(ConnectionError, match=problem):
        mount(server)


def start_on_a_port(command: list[str]) -> tuple[subprocess.Popen, int]:
    for _ in range(5):  # another process may take the port first
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = subprocess.Popen([*command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return server, port
            time.sleep(0.05)
    raise AssertionError("the server does not start")


def test_a_server_on_the_network(command):
    server, port = start_on_a_port(command)
    try:
        tools = {tool.name: tool for tool in mount(f"http://127.0.0.1:{port}/mcp", timeout=20.0)}
        assert list(tools) == NAMES and call(tools, "add", a=1).text == "3"
        assert call(tools, "note", text="\ud800").text == "1 ? None" and call(tools, "who").text == str(server.pid)
    finally:
        server.kill()
        server.wait()
    assert call(tools, "add", a=1).fault and "cannot be reached" in call(tools, "add", a=1).text
    tools["add"].connection.close()


RAW = """
import json, os, subprocess, sys

def reply(message, **result):
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)

pages = count = 0
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        reply(message, **known, serverInfo={"name": "raw", "version": "1"})
    elif message["method"] == "tools/list" and "late" in sys.argv and pages:
        pass  # silent from here on
    elif message["method"] == "tools/list":
        pages += 1
        schema = json.loads(sys.argv[1])
        more = {"nextCursor": str(pages)} if "endless" in sys.argv else {}
        reply(message, tools=[{"name": name, "inputSchema": schema} for name in sys.argv[2].split(",")], **more)
    elif message["method"] == "tools/call" and "wild" in sys.argv:
        answer = message["params"]["arguments"]["a"].replace("ID", str(message["id"])) + "\\n"
        sys.stdout.buffer.write(answer.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
    elif message["method"] == "tools/call" and "toys" in sys.argv:
        name, a = message["params"]["name"], message["params"]["arguments"].get("a", 0)
        count += 1
        if name == "die":
            os._exit(1)
        if name != "sleep" or not a:
            said = {"add": a + 2, "sleep": "awake", "count": count, "who": os.getpid()}[name]
            reply(message, content=[{"type": "text", "text": str(said)}])
    elif "id" in message and message["method"] != "tools/call":
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
"""


TOYS = "add,sleep,count,who,die"


@pytest.fixture
def mount_raw(tmp_path):
    """Mounts a server that lists tools of one schema, and answers calls in any manner or none: its tool, or all by name."""
    script, mounted = tmp_path / "raw.py", []
    script.write_text(RAW)

    def mount_raw(*manner, schema=ANY, names="x", **options):
        found = mount([sys.executable, str(script), json.dumps(schema), names, *manner], **options)
        mounted.extend(found)
        return found[0] if names == "x" else {tool.name: tool for tool in found}

    yield mount_raw
    for tool in mounted:
        tool.connection.close()


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"


def test_a_call_that_takes_too_long_hurts_only_itself(mount_raw):
    toys = mount_raw("toys", names=TOYS, timeout=2.0)
    names = [("add", {"a": 1}), ("sleep", {"a": 600}), ("sleep", {"a": 0}), ("add", {"a": 2})]
    results = run_calls([(toys, ToolCall(*one)) for one in names])
    assert [result.text for result in results] == ["3", "sleep took too long.", "awake", "4"]
    assert [result.fault for result in results] == [False, True, False, False]
    assert call(toys, "add", a=3).text == "5"


def test_a_server_that_dies_is_a_fault_and_comes_back(mount_raw):
    toys = mount_raw("toys", names=TOYS, timeout=20.0)
    assert call(toys, "count").text == "1"
    results = run_calls([(toys, ToolCall(name, {})) for name in ("die", "die")])
    assert any(result.fault and "Connection closed" in result.text for result in results)
    assert not any(result.ok for result in results)
    assert call(toys, "count").text == "1"  # a new server, which knows nothing of the old one
    os.kill(int(call(toys, "who").text), signal.SIGKILL)  # while nobody looks
    command = toys["add"].connection.server
    assert mount(command, timeout=20.0, only=["add"])[0].execute_batch([{"a": 4}])[0].text == "6"


def test_a_process_has_one_connection_to_a_server(mount_raw):
    connection = mount_raw().connection
    with ThreadPoolExecutor(4) as pool:
        again = [tool for (tool,) in pool.map(lambda _: mount(connection.server), range(4))]
    copies = [env.tools["x"] for env in pickle.loads(pickle.dumps([Digit(tool) for tool in again]))]
    assert {id(tool.connection) for tool in (*again, *copies)} == {id(connection)}
    assert len({tool.batch_key for tool in copies}) == 1  # so that a vector makes one batch
    assert mount_raw(timeout=29.0).connection is not connection


def test_environments_over_a_server_make_a_vector_and_keep_their_promises(mount_raw):
    vector = ToolVectorEnv(lambda: Digit(mount_raw("toys", names=TOYS)["add"]), 3)
    vector.reset(seed=0)
    observations, *_ = vector.step([f'<add>{{"a": {i}}}</add>' for i in range(3)])
    assert observations == tuple(f"<information>{i + 2}</information>" for i in range(3))
    check_agent_env(Digit(mount_raw("toys", names=TOYS)["add"]), steps=6)


def test_a_tool_with_a_hostile_schema_is_refused_when_it_is_mounted(mount_raw):
    schema = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/a"}}}
    with pytest.raises(ValueError, match=r"the server.s tool .x. cannot be used: .*refers to"):
        mount_raw(schema=schema)


def test_a_server_that_stops_the_client_too_costs_one_wait(mount_raw, monkeypatch):
    """Its pipe is full, so the client cannot even give up: no call is sent again, and the next one has another connection."""
    tool = mount_raw(timeout=0.5)
    thread, waits = tool.connection._client_thread, []

    def run(work, seconds):
        waits.append(seconds)
        raise TimeoutError

    monkeypatch.setattr(thread, "run", run)
    results = run_calls([({"x": tool}, ToolCall("x", {}))] * 8)
    assert all(result.fault for result in results) and len(waits) == 2  # the calls, and whether it lives
    assert not thread.alive


def test_a_program_has_the_environment_of_its_caller(mount_raw, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", "a secret")
    program = f"import os; open({str(tmp_path / 'key')!r}, 'w').write(os.environ['MY_KEY'])"
    with pytest.raises(ConnectionError):
        mount([sys.executable, "-c", program])
    assert (tmp_path / "key").read_text() == "a secret"


def test_a_list_of_tools_without_end_is_given_up(mount_raw):
    with pytest.raises(ConnectionError, match="goes on after 100 pages"):
        mount_raw("endless")


def test_a_server_that_falls_silent_is_ended(mount_raw, monkeypatch):
    monkeypatch.setattr(mounted, "_PROBE", 0.5)
    before = descendants()
    tool = mount_raw("late", timeout=0.5)
    (started,) = descendants() - before
    assert tool.execute_batch([{}])[0].fault and not lives(started)


ANSWER = '{"jsonrpc": "2.0", "id": ID, "result": RESULT}'
DEEP = '{"content": [], "structuredContent": ' + "[" * 5000 + "]" * 5000 + "}"
UNREADABLE = ("", "{not json", ANSWER[:30], "\udc80\udcff\x00", "[]", ANSWER.replace("ID", "null"),
              ANSWER.replace("RESULT", DEEP))  # fmt: skip
WRONG = [
    *(ANSWER.replace("RESULT", result) for result in ("{}", '{"content": 5}', '{"content": [{"type": 1}]}')),
    ANSWER.replace("RESULT", '{"content": [{"type": "text"}], "isError": "maybe"}'),
    '{"jsonrpc": "2.0", "id": ID, "error": {"code": -32000, "message": "Connection closed"}}',
]


@pytest.mark.parametrize("code", [-32602, -32601, -32603])
def test_arguments_that_a_server_rejects_void_no_episode(mount_raw, code):
    """Else an agent could leave a bad episode by calling wrongly. That a listed tool is not there is not its mistake."""
    said = ANSWER.replace('"result": RESULT', f'"error": {{"code": {code}, "message": "no"}}')
    result = mount_raw("wild", timeout=2.0).execute_batch([{"a": said}])[0]
    assert (result.ok, result.fault) == (False, code != -32602)


def test_structured_content_alone_is_read_and_silence_is_named(mount_raw):
    tool = mount_raw("wild", timeout=2.0)
    both = '{"content": [{"type": "text", "text": "seven"}], "structuredContent": {"n": 7}}'
    mute = ANSWER.replace("RESULT", '{"content": [], "isError": true}')
    silent = tool.execute_batch([{"a": mute}])[0]
    assert (silent.text, silent.ok) == ("x failed, without saying why.", False)
    for given, read in ((both, "seven"), ('{"content": [], "structuredContent": {"n": 7}}', '{"n": 7}')):
        result = tool.execute_batch([{"a": ANSWER.replace("RESULT", given)}])[0]
        assert (result.text, result.data, result.ok) == (read, {"n": 7}, True)


def test_answers_that_are_none_are_faults_of_the_tool_and_the_next_call_is_answered(mount_raw, capfd):
    """Those that cannot be read are waited for in vain; a seed says which."""
    tool = mount_raw("wild", timeout=2.0)
    good = ANSWER.replace("RESULT", '{"content": [{"type": "text", "text": "good"}]}')
    rng = random.Random(SEED)
    for answer in rng.sample(answers := WRONG + rng.sample(UNREADABLE, 2), len(answers)):
        (result,) = run_calls([({"x": tool}, ToolCall("x", {"a": answer}))])
        assert result.fault and not result.ok, answer[:100]
        assert tool.execute_batch([{"a": good}])[0].text == "good", answer[:100]
    assert "Traceback" not in capfd.readouterr().err


def test_a_program_that_never_answered_is_gone_when_mount_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(mounted, "_OPENING", 2.0)
    mute = f"trap '' TERM; sleep 600 & echo $! $$ > {tmp_path / 'pids'}; wait; sleep 600"
    with pytest.raises(ConnectionError, match="no answer in 2 s"):
        mount(["sh", "-c", mute])
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not lives(pid)
