"""The README's animation: demo templates on the canvas while one value of a node changes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools.launcher import canvas, paths, screenshots, workflow
from tools.launcher.paths import ROOT, write_atomically

FILE = ROOT / "docs" / "images" / "sliders.webp"
_SIZE = (1000, 560)
_TITLE = 44  # pixels of the strip above
_GAP = 16
_SHOWN = "SaveImage"
_WORKFLOW_MILLISECONDS = 1200
_BETWEEN, _STEP_MILLISECONDS = 4, 160  # steps from 0 to 1, as a slider is drawn
_REST_MILLISECONDS = 750
_IMAGE = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    return new URLSearchParams(app.nodeOutputs[node.id].images[0]).toString()
}"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A template by the first words of its file, and a widget of one of its nodes.

    ``values``: what the widget gets, each with the milliseconds that it is shown. ``part``: the
    right fraction of the sheet of images that is shown.
    """

    title: str
    template: str
    node: str
    widget: str
    values: tuple[tuple[object, int], ...]
    part: float = 1.0


def _slider(name: str) -> Iterator[tuple[str, int]]:
    """A slider drawn from 0 to 1, and back to 0."""
    for step in (*range(_BETWEEN + 1), 0):
        rests = step in (0, _BETWEEN)
        text = f"{name}: {step / _BETWEEN:g}" if step else ""
        yield text, _REST_MILLISECONDS if rests else _STEP_MILLISECONDS


def _strengths(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((text.format(strength), 2 * _REST_MILLISECONDS) for strength in (0, 2))


SCENES = (
    Scene(
        title="Edit a person with sliders",
        template="01 ",
        node="GBX_W2WEdit",
        widget="edits",
        values=tuple(
            each for name in ("beard", "round glasses", "dark skin") for each in _slider(name)
        ),
        part=0.5,
    ),
    Scene(
        title="Change a word in an image, and nothing else",
        template="10 ",
        node="GBX_EditByWords",
        widget="edits",
        values=_strengths("no glasses -> sunglasses: {}"),
    ),
    Scene(
        title="Find the person of one photo",
        template="03 ",
        node="GBX_W2WEdit",
        widget="edits",
        values=(("", _REST_MILLISECONDS), ("dark skin: 0.4", 2 * _REST_MILLISECONDS)),
    ),
    Scene(
        title="Switch off the neurons behind a memorized portrait",
        template="04 ",
        node="GBX_NemoNeuronMask",
        widget="strength",
        values=((0.0, 2 * _REST_MILLISECONDS), (1.0, 2 * _REST_MILLISECONDS)),
    ),
)


def write(url: str) -> Path:
    """Write the animation from the canvas of the server at ``url``; returns the file written."""
    frames: list[Image.Image] = []
    durations: list[int] = []
    with canvas.chromium() as browser:
        for scene in SCENES:
            for frame, milliseconds in _frames(browser, url, scene):
                frames.append(frame)
                durations.append(milliseconds)
    content = io.BytesIO()
    frames[0].save(
        content,
        "WEBP",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        quality=75,
        method=6,
    )
    write_atomically(FILE, content.getvalue())
    return FILE


def _frames(browser, url: str, scene: Scene) -> Iterator[tuple[Image.Image, int]]:
    """The template as it opens and has run, then the node beside its images for each value."""
    (path,) = paths.WORKFLOWS.glob(f"{scene.template}*.json")
    opened = screenshots.open_bare(browser, url, vue=False)
    opened.load(workflow.load(path))
    opened.run()
    yield _titled(scene.title, screenshots.screenshot_of(opened)), _WORKFLOW_MILLISECONDS
    screenshots.look_at_alone(opened, scene.node)
    for value, milliseconds in scene.values:
        opened.set(scene.node, scene.widget, value)
        opened.run()
        node = Image.open(io.BytesIO(opened.page.screenshot()))
        query = opened.page.evaluate(_IMAGE, _SHOWN)
        response = opened.page.request.get(f"{opened.url}/view?{query}")
        sheet = Image.open(io.BytesIO(response.body()))
        sheet = sheet.crop((round(sheet.width * (1 - scene.part)), 0, *sheet.size))
        yield _titled(scene.title, node, sheet), milliseconds


def _titled(title: str, *images: Image.Image) -> Image.Image:
    """Images side by side under a title; the last one takes the room that the others leave."""
    frame = Image.new("RGB", _SIZE, "white")
    font = ImageFont.load_default(24)
    ImageDraw.Draw(frame).text((_GAP, _TITLE // 2), title, "black", font, anchor="lm")
    left = 0
    for image in images:
        last = image is images[-1]
        room = _SIZE[0] - left if last else round(0.42 * _SIZE[0])
        scale = min(room / image.width, (_SIZE[1] - _TITLE) / image.height)
        size = round(image.width * scale), round(image.height * scale)
        resized = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        top = _TITLE + (_SIZE[1] - _TITLE - resized.height) // 2
        frame.paste(resized, (left + (room - resized.width) // 2 if last else left, top))
        left += resized.width + _GAP
    return frame
