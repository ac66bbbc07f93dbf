"""Names on the hub: cache first, a hub that does not answer, a hub that does, and what the public demo allows."""

import hashlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from embcompare.errors import EmbcompareError, ModelNotFound, ModelRefused, SettingsError
from embcompare.models import ModelPool, demo_names, fingerprint, hub, inspect_model, load_model

COMMIT = "1234567890abcdef1234567890abcdef12345678"


@pytest.fixture
def online(monkeypatch, tmp_path):
    """Let the hub be asked, at the address given, with an empty cache."""
    from huggingface_hub import constants

    def at(endpoint):
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", "*")

    return at


class FakeHub:
    """A hub on this machine that offers the files of some folders and remembers what was asked of it."""

    def __init__(self):
        self.repositories = {}
        self.asked = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.do_GET()

            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                fake.asked.append((self.command, path))
                for name, folder in fake.repositories.items():
                    if path.startswith(f"/api/models/{name}"):
                        files = sorted(p for p in folder.rglob("*") if p.is_file())
                        if "/tree/" in path:
                            tree = [
                                {
                                    "type": "file",
                                    "path": str(p.relative_to(folder)),
                                    "size": p.stat().st_size,
                                    "oid": "0",
                                }
                                for p in files
                            ]
                            return self.send(json.dumps(tree).encode(), {})
                        siblings = [{"rfilename": str(p.relative_to(folder)), "size": p.stat().st_size} for p in files]
                        return self.send(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), {})
                    for revision in ("main", COMMIT):
                        start = f"/{name}/resolve/{revision}/"
                        if path.startswith(start) and (folder / path.removeprefix(start)).is_file():
                            body = (folder / path.removeprefix(start)).read_bytes()
                            return self.send(body, {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'})
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def send(self, body, headers):
                self.send_response(200)
                for key, value in {"X-Repo-Commit": COMMIT, **headers, "Content-Length": str(len(body))}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def fetched(self):
        return {path.rpartition("/")[2] for method, path in self.asked if "/resolve/" in path and method == "GET"}


@pytest.fixture
def fake_hub(online):
    fake = FakeHub()
    online(fake.address)
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.mark.parametrize("name", ["gpt2", "org/some-model", "org/some-model@main"])
def test_offline_the_hub_is_not_asked_at_all(monkeypatch, name):
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("asked"))
    for ask in (load_model, inspect_model, fingerprint):
        with pytest.raises(ModelNotFound, match="not in the local hub cache and HF_HUB_OFFLINE is set"):
            ask(name)


def test_an_unreachable_hub_is_said_within_three_seconds(online, monkeypatch):
    import huggingface_hub  # noqa: F401 - its import is not what is timed
    import transformers  # noqa: F401

    def never(*_, **__):
        time.sleep(4)
        raise OSError

    online("https://hub.invalid")
    monkeypatch.setattr(hub.socket, "create_connection", never)
    began = time.monotonic()
    with pytest.raises(
        ModelNotFound, match=r"org/name is not in the local hub cache and hub\.invalid cannot be reached"
    ):
        load_model("org/name")
    assert time.monotonic() - began < 3


def test_a_host_that_does_not_exist_is_said_at_once(online):
    online("https://no-such-host.invalid")
    began = time.monotonic()
    with pytest.raises(ModelNotFound, match="cannot be reached"):
        inspect_model("org/name")
    assert time.monotonic() - began < 3


def test_a_hub_that_accepts_and_never_answers_is_given_up(online, monkeypatch):
    monkeypatch.setattr(hub, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        online(f"http://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(2):  # the first time is spent on imports
            began = time.monotonic()
            with pytest.raises(ModelNotFound, match="no usable answer"):
                load_model("org/name")
    assert time.monotonic() - began < 2


def test_a_model_is_fetched_once_and_only_what_is_needed(fake_hub, tiny_folders, tmp_path, monkeypatch):
    import shutil

    folder = shutil.copytree(tiny_folders("gpt2"), tmp_path / "repo")
    (folder / "pytorch_model.bin").write_bytes(b"evil")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "onnx").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "onnx" / "model.safetensors")
    fake_hub.repositories["org/tiny"] = folder
    assert inspect_model("org/tiny").layers == 2
    assert fake_hub.fetched() == {"config.json"}
    model = load_model("org/tiny")
    assert model.info.label == "org/tiny"
    assert fake_hub.fetched() == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    asked = len(fake_hub.asked)
    assert load_model("org/tiny").fingerprint == model.fingerprint == fingerprint(str(tiny_folders("gpt2")))
    assert len(fake_hub.asked) == asked, "the cache answers"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with ModelPool(max_models=1).lease("org/tiny") as leased:
        assert leased.fingerprint == model.fingerprint


def test_a_model_too_large_is_refused_before_its_weights_are_fetched(fake_hub, tiny_folders):
    fake_hub.repositories["org/tiny"] = tiny_folders("gpt2")
    with pytest.raises(ModelRefused, match="may be used"):
        load_model("org/tiny", max_bytes=1000)
    assert fake_hub.fetched() == {"config.json"}


def test_pickled_weights_on_the_hub_are_not_even_fetched(fake_hub, tmp_path):
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "repo" / "pytorch_model.bin").write_bytes(b"evil")
    fake_hub.repositories["org/old"] = tmp_path / "repo"
    with pytest.raises(ModelRefused, match=r"only pytorch_model\.bin"):
        load_model("org/old")
    assert fake_hub.fetched() == set()


def test_a_name_the_hub_does_not_know(fake_hub):
    with pytest.raises(ModelNotFound, match="no model 'org/nobody'"):
        load_model("org/nobody")


def test_a_misspelt_demo_model_is_told_the_closest():
    with pytest.raises(ModelNotFound, match="did you mean demo/gpt2-a"):
        load_model("demo/gtp2-a")
    with pytest.raises(ModelNotFound, match="did you mean demo/gpt2-b"):
        load_model("gpt2-b")


def test_a_bare_name_is_never_a_folder_but_the_way_is_shown(tmp_path, monkeypatch, tiny_folders):
    (tmp_path / "mine").symlink_to(tiny_folders("gpt2"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match=r"write \./mine"):
        load_model("mine")
    assert load_model("./mine").info.layers == 2


def test_demo_models_that_are_installed_can_be_inspected():
    for name in demo_names():
        info = inspect_model(f"demo/{name}")
        assert info.supported
        assert info.card


@pytest.fixture
def hosted(monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    monkeypatch.setenv("EMBCOMPARE_ALLOWED_MODELS", f"org/tiny@{COMMIT}, org/other@{COMMIT}")


def test_the_public_demo_reads_no_folders_and_no_other_names(hosted, tiny_folders, monkeypatch):
    monkeypatch.setattr(hub, "find_model", lambda *_: pytest.fail("looked"))
    for text in (
        str(tiny_folders("gpt2")),
        "/etc",
        "./x",
        "gpt2",
        "org/unpinned",
        "org/tiny@main",
        f"other/tiny@{COMMIT}",
    ):
        for ask in (load_model, inspect_model, fingerprint, lambda t: ModelPool().lease(t).__enter__()):
            with pytest.raises(ModelRefused, match="not offered here") as caught:
                ask(text)
            assert f"org/tiny@{COMMIT}" in str(caught.value)


def test_a_list_that_pins_no_commit_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "1")
    monkeypatch.setenv("EMBCOMPARE_ALLOWED_MODELS", f"org/tiny@{COMMIT}, org/unpinned")
    with pytest.raises(SettingsError, match="EMBCOMPARE_ALLOWED_MODELS cannot be 'org/unpinned'; write each model as"):
        load_model("org/unpinned")
    monkeypatch.setenv("EMBCOMPARE_HOSTED", "publik")
    with pytest.raises(SettingsError, match="EMBCOMPARE_HOSTED cannot be 'publik'"):
        load_model("/etc")


def test_the_public_demo_reads_listed_models_at_their_commit(hosted, fake_hub, tiny_folders):
    fake_hub.repositories["org/tiny"] = tiny_folders("gpt2")
    for text in ("org/tiny", f"org/tiny@{COMMIT}"):
        assert load_model(text).spec.revision == COMMIT
    assert all("/main" not in path for _, path in fake_hub.asked)


def test_every_refusal_is_one_sentence(hosted):
    for text in ("gpt2", "/etc/passwd", "demo/nothing", "a b"):
        with pytest.raises(EmbcompareError) as caught:
            load_model(text)
        assert "\n" not in str(caught.value)
