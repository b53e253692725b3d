"""What the first templates share: what is needed in one subgraph, and before and after on one large
labeled sheet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .authoring import Output, Workflow

_WIDTH = (
    640  # of the node that shows the sheet: over 400 pixels on the screen where the workflow opens
)
_PANEL, _EDGE = (
    220,
    60,
)  # of Labeled Sheet: width of an image from which its texts grow, and all margins
_LABEL, _TITLE = 50, 10  # the height of a label there, and for each row of a grid
_AROUND = 150  # height of a Save Image without its image, in Nodes 2.0


def prepare(
    w: Workflow, title: str, add: Callable[..., dict[str, Output]], prompt: str, **shown: object
) -> dict[str, Output]:
    """The outputs of a subgraph with the demo model and an encoded prompt, by name.

    ``add(w, ready, **shown)`` adds more to what is ``ready`` (model, clip, vae, prompt, positive,
    negative) and returns what leaves; ``shown``: further inputs that the node shows.
    """
    names: list[str] = []

    def inside(w: Workflow, prompt: Output, **given: Output) -> dict[str, Output]:
        model, clip, vae = w.add("GBX_LoadDemoModel")
        positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
        negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Negative prompt")
        ready = {"model": model, "positive": positive, "negative": negative, "vae": vae}
        ready |= {"clip": clip, "prompt": prompt}
        made = add(w, ready, **given)
        names[:] = made
        return made

    made = w.subgraph(title, inside, **shown, prompt=prompt)
    return dict(zip(names, (made,) if isinstance(made, Output) else made, strict=True))


def labeled(
    w: Workflow, images: Sequence[Output], labels: Sequence[str], columns: int, width: int
) -> Output:
    """One sheet of images, each enlarged to ``width`` pixels, with a label over each."""
    batch, *others = images
    for image in others:
        batch = w.add("ImageBatch", image1=batch, image2=image)
    return w.add(
        "GBX_W2WSheet",
        images=batch,
        label_text="\n".join(labels),
        columns=columns,
        image_width=width,
    )[0]


def rows(
    w: Workflow, images: Output, count: int, figures: dict[str, Output], opacity: float = 1.0
) -> Output:
    """A sheet with ``count`` images above rows of what figures show of each, laid over it where it
    is not opaque.
    """

    def inside(w: Workflow, images: Output, **figures: Output) -> Output:
        enlarged = w.add(
            "ImageScale",
            image=images,
            upscale_method="bicubic",
            width=512,
            height=512,
            crop="disabled",
        )
        shown = list(figures.values())
        if opacity < 1:
            blended = {"image1": enlarged, "blend_factor": opacity, "blend_mode": "normal"}
            shown = [w.add("ImageBlend", image2=figure, **blended) for figure in shown]
        each = ("image", *names)
        labels = (
            each
            if count == 1
            else [f"face {number}, {row}" for row in each for number in range(1, count + 1)]
        )
        return labeled(w, [enlarged, *shown], labels, count, 256)

    names = tuple(figures)
    numbered = {f"figure_{number}": figure for number, figure in enumerate(figures.values(), 1)}
    return w.subgraph("On one sheet", inside, images=images, **numbered)


def show(
    w: Workflow, sheet: Output, name: str, title: str, shape: float, width: int = _WIDTH
) -> None:
    """The sheet in a node in which it is drawn large; ``shape``: its height over its width."""
    size = (width, round((width - 20) * shape) + _AROUND)
    w.add(
        "SaveImage",
        images=sheet,
        filename_prefix=f"glassbox/{name}",
        node_title=title,
        node_size=size,
    )


def shape_of(
    columns: int, rows: int, width: int, grid: bool = False, height: int | None = None
) -> float:
    """Height over width of a Labeled Sheet; ``grid``: with labels on its axes, not over each image.

    ``height`` of an image that is not square.
    """
    label = round((_TITLE if grid else _LABEL) * max(width / _PANEL, 1))
    return (((height or width) + label) * rows + _EDGE) / (width * columns + _EDGE)


def for_generating(ready: dict[str, Output]) -> dict[str, Output]:
    """What a subgraph that generates needs of what is ready."""
    return {name: ready[name] for name in ("model", "positive", "negative", "vae")}
