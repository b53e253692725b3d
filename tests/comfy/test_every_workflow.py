"""What holds for every workflow of the pack, now and later. Nothing here names a workflow."""

import io
import json
import urllib.parse
import urllib.request

import newer
import pytest
import repository
from PIL import Image

from tools.launcher import workflow
from tools.launcher.api import output_files
from tools.workflows import canvas, described
from tools.workflows.titles import LIST, TITLES, listed, path_of


def _each(paths):
    return pytest.mark.parametrize("path", paths, ids=repository.name_of)


def test_every_file_is_described_and_every_description_has_a_file():
    assert set(repository.WORKFLOWS) == set(map(path_of, described()))
    assert LIST.read_text("utf-8") == listed(described()), "run python -P tools/workflows/make.py"
    assert len(repository.TEMPLATES) == len(TITLES) <= 45


@_each(repository.WORKFLOWS)
def test_the_file_is_what_its_description_makes(path, object_info):
    if newer.than_tested():
        pytest.skip("the files are made with the ComfyUI that the pack fetches: nodes of others have more inputs")
    made = canvas.to_text(canvas.make(name := repository.name_of(path), described()[name], object_info))
    assert path.read_text("utf-8") == made, "run python -P tools/workflows/make.py"


@_each(repository.DEMOS)
def test_a_demo_runs_through_the_queue(path, client, object_info):
    saved = workflow.load(path)
    entry = client.wait(client.queue(workflow.to_prompt(saved, object_info), saved))
    images = [client.download(file) for file in output_files(entry)]
    assert images and all(images)
    assert saved in map(_workflow_in, images)  # dropped on the canvas, an image opens it


def _workflow_in(file: bytes) -> dict | None:
    """The workflow that a saved image carries, and a panel's own image does not."""
    with Image.open(io.BytesIO(file)) as image:
        return json.loads(image.info.get("workflow", "null"))


@_each(repository.TEMPLATES)
def test_a_template_has_a_thumbnail(path):
    with Image.open(path.with_suffix(".jpg")) as image:
        assert image.format == "JPEG"
        assert 200 <= max(image.size) <= 800


def test_the_template_browser_finds_them(server):
    with urllib.request.urlopen(f"{server.url}/api/workflow_templates", timeout=60) as answer:
        found = json.load(answer)[repository.LINKED_AS]
    assert set(found) == {path.stem for path in repository.TEMPLATES}
    for path in repository.TEMPLATES:
        address = f"{server.url}/api/workflow_templates/{repository.LINKED_AS}/{urllib.parse.quote(path.name)}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert json.load(answer) == json.loads(path.read_text("utf-8"))
