"""What is found out about models before torch is imported, above all those of the hub."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from trainers import inputs


class Hub(BaseHTTPRequestHandler):
    """Answers questions for models."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        name = self.path.removeprefix("/api/models/")
        status, code = {"me/gated": (403, "GatedRepo"), "me/none": (404, "RepoNotFound")}.get(name, (200, ""))
        content = json.dumps({"id": name, "siblings": []}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield
    server.shutdown()


@pytest.fixture
def cached(tmp_path):
    """A model in the cache of the hub."""
    folder = tmp_path / "cache" / "models--me--cached"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("1")
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "snapshots" / "1" / "config.json").write_text("{}")
    return "me/cached"


def test_what_the_hub_says(hub):
    inputs.check_model("me/there")
    with pytest.raises(ValueError, match="there is no model 'me/none', neither a folder here nor on the hub"):
        inputs.check_model("me/none")
    with pytest.raises(ValueError, match="me/gated is a gated model: accept its terms at http"):
        inputs.check_model("me/gated")


def test_a_model_in_the_cache_does_without_a_hub_out_of_reach(hub, cached, monkeypatch):
    inputs.check_model(cached)
    assert not constants.HF_HUB_OFFLINE  # it could be asked
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # put back after the test
    with pytest.raises(ValueError, match=r"no folder 'me/other' here, and http://127.0.0.1:9 cannot be asked for it"):
        inputs.check_model("me/other")
    inputs.check_model(cached)
    assert constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"  # no file of it is asked for, 24 s each
    with pytest.raises(ValueError, match=r"'me/other' here nor in the cache .*, and HF_HUB_OFFLINE forbids to ask"):
        inputs.check_model("me/other")


def test_an_adapter_needs_its_base_from_the_hub(hub, tmp_path):
    pytest.importorskip("peft")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "me/none"}))
    with pytest.raises(ValueError, match="there is no model 'me/none'"):
        inputs.check_model(tmp_path)
    inputs.check_model(tmp_path, "me/there")  # is put on another one
