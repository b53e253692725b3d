"""What holds for every workflow of the pack, now and later. Nothing here names a workflow."""

import io
import json
import urllib.parse
import urllib.request

import newer
import pytest
import repository
from PIL import Image
from robustness import soak

from tools.launcher import demo, workflow
from tools.launcher.api import output_files
from tools.workflows import canvas, described
from tools.workflows.titles import ILLUSTRATED, LIST, TITLES, listed, path_of


def _each(paths):
    return pytest.mark.parametrize("path", paths, ids=repository.name_of)


def test_every_file_is_described_and_every_description_has_a_file():
    assert set(repository.WORKFLOWS) == set(map(path_of, described()))
    assert LIST.read_text("utf-8") == listed(described()), "run python -P tools/workflows/make.py"
    assert len(repository.TEMPLATES) == len(TITLES) <= 28


@_each(repository.WORKFLOWS)
def test_the_file_is_what_its_description_makes(path, object_info):
    if newer.than_tested():
        pytest.skip(
            "the files are made with the ComfyUI that the pack fetches: nodes of others have more "
            "inputs"
        )
    made = canvas.to_text(
        canvas.make(name := repository.name_of(path), described()[name], object_info)
    )
    assert path.read_text("utf-8") == made, "run python -P tools/workflows/make.py"


_FIRST = list(demo.choose(None).values())  # the ten that `run.py demo` shows


@pytest.mark.slow
@_each(_FIRST)
def test_a_first_demo_runs_through_the_queue(path, client, object_info):
    saved = workflow.load(path)
    _makes_images(client, workflow.to_prompt(saved, object_info), saved)


@pytest.mark.slow
@_each([path for path in repository.DEMOS if path not in _FIRST])
def test_a_further_demo_runs_through_the_queue_at_small_sizes(path, client, object_info):
    """Some of them train for minutes; `run.py demo --all` runs them whole."""
    saved = workflow.load(path)
    prompt = soak.reduced(workflow.to_prompt(saved, object_info), object_info)
    _makes_images(client, prompt, saved)


@_each(_FIRST)
def test_a_first_demo_runs_through_the_queue_at_small_sizes(path, client, object_info):
    """With few steps and small images."""
    saved = workflow.load(path)
    prompt = workflow.to_prompt(saved, object_info)
    small = soak.reduced(prompt, object_info)
    assert prompt != small
    _makes_images(client, small, saved)


def _makes_images(client, prompt, saved):
    entry = client.wait(client.queue(prompt, saved))
    images = [client.download(file) for file in output_files(entry)]
    assert images and all(images)
    assert saved in map(_workflow_in, images)  # dropped on the canvas, an image opens it


def _workflow_in(file: bytes) -> dict | None:
    """The workflow that a saved image carries, and a panel's own image does not."""
    with Image.open(io.BytesIO(file)) as image:
        return json.loads(image.info.get("workflow", "null"))


@_each([*repository.TEMPLATES, *map(path_of, ILLUSTRATED)])
def test_a_template_has_a_thumbnail(path):
    with Image.open(path.with_suffix(".jpg")) as image:
        assert image.format == "JPEG"
        assert 200 <= max(image.size) <= 800


def test_the_template_browser_finds_them(server):
    with urllib.request.urlopen(f"{server.url}/api/workflow_templates", timeout=60) as answer:
        found = json.load(answer)[repository.LINKED_AS]
    assert set(found) == {path.stem for path in repository.TEMPLATES}
    for path in repository.TEMPLATES:
        name = urllib.parse.quote(path.name)
        address = f"{server.url}/api/workflow_templates/{repository.LINKED_AS}/{name}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert json.load(answer) == json.loads(path.read_text("utf-8"))
