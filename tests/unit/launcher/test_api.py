"""The client of ComfyUI's API, against a stand-in for ComfyUI."""

from __future__ import annotations

import threading

import pytest

from tools.launcher import api
from tools.launcher.api import Client, OutputFile, Progress, PromptError, output_files
from tools.launcher.errors import LaunchError
from tools.launcher.server import Server


@pytest.fixture
def client(stand_in, tmp_path):
    with Server(stand_in, tmp_path / "base", cpu=False) as server:
        yield Client(server.url)


def _prompt(kind: str) -> dict:
    return {"1": {"class_type": kind, "inputs": {}}}


def test_follows_a_prompt_and_fetches_its_file(client):
    seen: list[Progress] = []
    entry = client.wait(client.queue(_prompt("Sample")), seen.append)
    assert seen == [Progress("1"), Progress("1", 1, 3), Progress("1", 2, 3), Progress("1", 3, 3)]
    (file,) = output_files(entry)
    assert file == OutputFile("1", "a_00001_.png", "", "output")
    assert client.download(file).startswith(b"\x89PNG")


def test_a_prompt_that_is_done_before_anybody_waits(client):
    prompt_id = client.queue(_prompt("Sample"))
    client.wait(prompt_id)
    assert client.wait(prompt_id)["outputs"]


def test_a_failing_node_is_one_sentence(client):
    with pytest.raises(PromptError) as caught:
        client.wait(client.queue(_prompt("Fail")))
    assert str(caught.value) == "Fail (node 1): The file is corrupt: get it again."


def test_a_refused_prompt_is_one_sentence(client):
    with pytest.raises(PromptError) as caught:
        client.queue(_prompt("Refuse"))
    assert (
        str(caught.value)
        == "ComfyUI refused the prompt: Refuse (node 1): Value not in list: image: 'x'"
    )


def test_interrupting_ends_the_wait(client):
    prompt_id = client.queue(_prompt("Sleep"))
    threading.Timer(0.2, client.interrupt).start()
    with pytest.raises(PromptError, match="interrupted"):
        client.wait(prompt_id)


def test_a_dying_server_is_one_sentence(client):
    with pytest.raises(LaunchError, match="see its log"):
        client.wait(client.queue(_prompt("Die")))


def test_no_server_at_all_is_one_sentence():
    with pytest.raises(LaunchError, match="does not answer"):
        Client("http://127.0.0.1:9").object_info()


def test_output_files_come_in_the_order_of_node_ids():
    def image(name: str) -> dict:
        return {"images": [{"filename": name, "subfolder": "s", "type": "temp"}]}

    entry = {
        "outputs": {"10": image("c"), "9": image("b"), "2": {"text": ["no file"], **image("a")}}
    }
    assert [file.filename for file in output_files(entry)] == ["a", "b", "c"]


def test_the_last_progress_is_reported_again_while_comfyui_says_nothing(client, monkeypatch):
    monkeypatch.setattr(api, "_POLL", 0.05)
    prompt_id, seen = client.queue(_prompt("Sleep")), []

    def note(progress):
        seen.append(progress)
        if len(seen) == 4:
            client.interrupt()

    with pytest.raises(PromptError, match="interrupted"):
        client.wait(prompt_id, note)
    assert len(seen) >= 4 and set(seen) == {Progress("1")}
