"""What the widgets ask the server before the first run, and what it says to a bad question."""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
import repository

_SPACE = "avatars-v2-w2w.safetensors"


def _request(server, route: str, method: str = "GET", **parameters) -> tuple[int, dict]:
    address = f"{server.url}/glassbox/{route}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method=method), timeout=60
        ) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_directions_of_a_space(server):
    status, response = _request(server, "space", space_name=_SPACE)
    assert status == 200
    assert response["name"] == _SPACE.removesuffix(".safetensors")
    assert "beard" in response["labels"]


@pytest.mark.parametrize(("name", "activations"), [("sd15", 199), ("sdxl", 614), ("demo", None)])
def test_network_of_an_architecture(server, name, activations):
    status, response = _request(server, "network", kind="architecture", name=name)
    assert status == 200
    assert activations in (None, len(response["activations"]))
    assert response["architecture"] == (None if name == "demo" else name)
    assert sorted(number for group in response["groups"] for number in group["members"]) == [
        *range(len(response["activations"]))
    ]
    assert response["presets"]["recommended"]


@pytest.mark.parametrize(
    ("route", "parameters", "sentence"),
    [
        ("space", {}, "Pass these parameters"),
        ("space", {"space_name": "nothing.safetensors"}, "There is no weight space"),
        ("space", {"space_name": "../../../etc/passwd"}, "There is no weight space"),
        ("space", {"space_name": _SPACE, "more": "1"}, "Pass these parameters"),
        ("sliders", {}, "Pass these parameters"),
        ("network", {"kind": "architecture", "name": "sd99"}, "There is no architecture"),
        ("network", {"kind": "loras", "name": "x"}, "not a kind of network"),
        ("network", {"kind": "checkpoints", "name": "../x.safetensors"}, "There is no checkpoint"),
    ],
)
def test_a_bad_question_gets_400_and_a_sentence(server, route, parameters, sentence):
    status, response = _request(server, route, **parameters)
    assert status == 400
    assert sentence in response["error"]


def test_the_setting_of_kernels(server):
    for backend in ("eager", "environment"):
        assert _request(server, "kernels", "POST", backend=backend) == (200, {"backend": backend})
    status, response = _request(server, "kernels", "POST", backend="fast")
    assert (
        status == 400
        and response["error"]
        == "There is no backend fast: choose one of auto, eager, triton, cuda."
    )


def test_the_setting_forces_a_backend(app):
    setting, dispatch = app.module("nodes.host.routes"), app.module("kernels.dispatch")
    try:
        setting.choose("eager")
        assert dispatch.setting() == "eager"
    finally:
        setting.choose("environment")
    assert dispatch._chosen is None


def _header(server, path: str) -> str | None:
    with urllib.request.urlopen(f"{server.url}/extensions/{path}", timeout=60) as answer:
        return answer.headers["Cache-Control"]


def test_a_browser_starts_with_few_files_and_asks_for_the_others_again(server):
    """The front end imports what /extensions lists; the panels and the Chinese texts are not among
    it.
    """
    with urllib.request.urlopen(f"{server.url}/extensions", timeout=60) as answer:
        listed = [path for path in json.load(answer) if "lassbox" in path]
    assert sorted(path.rpartition("/")[2] for path in listed) == sorted(
        path.name for path in (repository.ROOT / "web").rglob("*.js")
    )
    folder = listed[0].split("/")[2]
    for path in ("glassbox.js", "widgets/network_map.mjs", "text/chinese_workflows.json"):
        assert _header(server, f"{folder}/{path}") in ("no-cache", "no-store")  # newer ComfyUI
