"""The README's animation: a face while the sliders of W2W Edit move."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from tools.launcher import canvas, screenshots
from tools.launcher.paths import ROOT, write_atomically

from .authoring import Workflow
from .canvas import make
from .sampling import encode

FILE = ROOT / "docs" / "images" / "sliders.webp"
_EDIT, _SHOWN = "GBX_W2WEdit", "PreviewImage"
_TURNS = ("beard", "round glasses", "dark skin")  # each alone to a strength of 1 and back
_FRAMES, _MILLISECONDS, _REST = 4, 180, 900  # of each way; of a frame, and of one at an end
_GAP = 16
_IMAGE = """type => {
    const node = app.graph.nodes.find(node => node.type === type)
    return new URLSearchParams(app.nodeOutputs[node.id].images[0]).toString()
}"""


def write(url: str, object_info: dict) -> Path:
    """Write the animation from the canvas of the server at ``url``; returns the file written."""
    texts = list(_texts())
    with canvas.chromium() as browser:
        opened = screenshots.open_bare(browser, url, vue=False)
        opened.load(make("sliders", _describe, object_info))
        opened.run()  # the ranges of the sliders show after a run
        screenshots.look_at_alone(opened, _EDIT)
        frames = [_frame(opened, text) for text in texts]
    durations = [_MILLISECONDS if number % _FRAMES else _REST for number in range(len(texts))]
    content = io.BytesIO()
    frames[0].save(
        content,
        "WEBP",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        quality=80,
        method=6,
    )
    write_atomically(FILE, content.getvalue())
    return FILE


def _describe(w: Workflow) -> None:
    w.note("Sliders", "One.", "Two.", "Three.")
    w.group("Sliders")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    space, _ = w.add("GBX_W2WFitDirections", space=space)
    point, _, _ = w.add("GBX_W2WSample", space=space, source="member", member_name="person_0058")
    edited, _ = w.add(_EDIT, point=point)
    guided = w.add("GBX_W2WGuidance", model=model, point=edited, end_percent=0.6)[0]
    positive, negative = encode(
        w, clip, "portrait, blue hoodie, smiling, open eyes, plain green background"
    )
    latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    prompts = {"positive": positive, "negative": negative}
    numbers = {"seed": 5, "steps": 30, "cfg": 3.0, "sampler_name": "euler_ancestral"}
    samples = w.add("KSampler", model=guided, **prompts, latent_image=latent, **numbers)
    w.add(_SHOWN, images=w.add("VAEDecode", samples=samples, vae=vae))


def _texts() -> Iterator[str]:
    """What W2W Edit gets in each frame."""
    for name in _TURNS:
        for step in (*range(_FRAMES), *range(_FRAMES, 0, -1)):
            yield f"{name}: {step / _FRAMES:g}" if step else ""


def _frame(opened: canvas.Canvas, text: str) -> Image.Image:
    """The node beside the image that the workflow makes with its edits."""
    opened.set(_EDIT, "edits", text)
    opened.run()
    node = Image.open(io.BytesIO(opened.page.screenshot())).convert("RGB")
    response = opened.page.request.get(f"{opened.url}/view?{opened.page.evaluate(_IMAGE, _SHOWN)}")
    face = (
        Image.open(io.BytesIO(response.body()))
        .convert("RGB")
        .resize((node.height,) * 2, Image.Resampling.BICUBIC)
    )
    frame = Image.new("RGB", (node.width + _GAP + face.width, node.height), "white")
    frame.paste(node, (0, 0))
    frame.paste(face, (node.width + _GAP, 0))
    return frame
