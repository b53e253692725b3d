"""Nodes for attributes: labels of a space's members, and the directions fitted to them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import torch
from comfy_api.latest import io

from ..host import folders
from ..host.progress import check_stop, interruptible
from ..host.schema import int_input, schema
from ..host.sockets import W2WSpace
from . import directions
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER
from .space import Space

if TYPE_CHECKING:
    from ..host.socket_types import CLIP, ClipVisionModel

#: The method by which the directions were fitted whose reach a space knows.
_MEASURED = directions.FitMethod.MOST_RELIABLE
_EXAMPLE = "member,beard,glasses\nface_001,1,0\nface_002,0,1"
_SPACE = W2WSpace.Output(
    display_name="space", tooltip="The space with the directions, for W2W Sample and others."
)


class LabelSource(StrEnum):
    """What labels of members are read from."""

    IMAGES = "images"
    FILE_NAMES = "file_names"
    METADATA = "metadata"


def _folder_stamp(name: str) -> str:
    from .member_sources import folder_stamp

    return folder_stamp(folders.lora_folder(name)) if name.strip() else ""


class W2WLabelMembers(io.ComfyNode):
    READS: ClassVar = {"folder": _folder_stamp}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WLabelMembers",
            display_name="W2W Label Members",
            category=CATEGORY,
            description=(
                "Labels the members of a space automatically: zero-shot with CLIP from their "
                "images, or by searching for your words in file names or metadata. For W2W Fit "
                f"Directions. {PAPER}, section 3.3."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "auto label",
                "zero-shot",
                "clip",
                "attributes",
            ],
            is_input_list=True,
            inputs=[
                W2WSpace.Input("space", tooltip="Space of the members."),
                io.Combo.Input(
                    "source",
                    options=list(LabelSource),
                    tooltip=(
                        "images: CLIP's zero-shot probability. file_names: names of the members, "
                        "with their folders. metadata: tags of training captions that kohya "
                        "stores in LoRA files, and modelspec's tags."
                    ),
                ),
                io.String.Input(
                    "words",
                    default="beard / shaven",
                    multiline=True,
                    tooltip=(
                        "One attribute per line; separate alternatives with /. With two "
                        "alternatives, the first is the positive label. A word without an "
                        "alternative is labeled by CLIP's cosine similarity, or by whether it "
                        "occurs."
                    ),
                ),
                io.String.Input(
                    "prompt",
                    default="portrait of a person, WORD",
                    tooltip="For images: CLIP's prompt template; WORD is replaced by each word.",
                ),
                io.String.Input(
                    "folder",
                    default="",
                    tooltip=(
                        "For metadata: folder of the members' LoRA files, as in W2W Build Space."
                    ),
                ),
                io.Image.Input(
                    "images",
                    optional=True,
                    tooltip=(
                        "For images: the images of W2W Sample's points with the source members, "
                        "in order; several images per member as a batch."
                    ),
                ),
                io.String.Input(
                    "names",
                    optional=True,
                    force_input=True,
                    tooltip=(
                        "For images: the name output of W2W Sample, one name per image or batch."
                    ),
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="For images: a CLIP text encoder with a projection to the image space.",
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip=(
                        "For images: the CLIP_VISION trained together with this CLIP. The demo "
                        "model's CLIP includes its own image encoder."
                    ),
                ),
            ],
            outputs=[
                io.String.Output(
                    display_name="labels", tooltip="The labels as CSV, for W2W Fit Directions."
                ),
                io.String.Output(
                    display_name="report",
                    tooltip="Number of members with, without, or undecided for each attribute.",
                ),
            ],
        )

    @classmethod
    def execute(
        cls,
        space: list[Space],
        source: list[str],
        words: list[str],
        prompt: list[str],
        folder: list[str],
        images: list[torch.Tensor] | None = None,
        names: list[str] | None = None,
        clip: list | None = None,
        clip_vision: list | None = None,
    ) -> io.NodeOutput:
        from . import labels, member_labels

        lines = member_labels.parse_lines(words[0])
        members = space[0].members
        if source[0] == LabelSource.IMAGES:
            cosines, what = _agreement(
                lines,
                prompt[0],
                images=images or [],
                names=names or [],
                members=members,
                clip=clip[0] if clip else None,
                clip_vision=clip_vision[0] if clip_vision else None,
            )
            found = member_labels.from_cosines(lines, cosines)
        else:
            texts = _texts(source[0], folder[0], members)
            found = interruptible(
                lambda: member_labels.from_counts(lines, texts)
            )  # every word in every name
            what = f"words in {'names' if source[0] == LabelSource.FILE_NAMES else 'tags'} of files"
        return io.NodeOutput(labels.to_csv(members, found), member_labels.describe(found, what))


class W2WFitDirections(io.ComfyNode):
    READS: ClassVar = {
        "labels": lambda text: (
            folders.file_stamp(folders.input_file(text)) if _is_file(text) else ""
        )
    }

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WFitDirections",
            display_name="W2W Fit Directions",
            category=CATEGORY,
            description=(
                "Fits a direction for each attribute from the members' labels, for W2W Edit. "
                f"{PAPER}, section 3.3."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "attribute direction",
                "linear classifier",
                "slider",
            ],
            inputs=[
                W2WSpace.Input("space", tooltip="Space of the labeled members."),
                io.String.Input(
                    "labels",
                    default="",
                    multiline=True,
                    tooltip=(
                        "Empty: use the labels stored in the space. Otherwise a table, or the "
                        "name of a .csv or .json file in ComfyUI's input folder. "
                        f"Example:\n{_EXAMPLE}"
                    ),
                ),
                io.Combo.Input(
                    "method",
                    options=list(directions.FitMethod),
                    default=directions.FitMethod.MOST_RELIABLE,
                    tooltip=(
                        "most_reliable: whichever of least_squares, mean_difference and ridge "
                        "has the highest split-half reliability, per direction; in a learned "
                        "space, conditional_difference. least_squares: as in the paper. "
                        "mean_difference: members with the attribute minus members without. "
                        "ridge: components and penalty chosen by leave-one-out error. svm, "
                        "logistic_regression: linear classifiers of scikit-learn. "
                        "conditional_difference: difference between members whose labels differ "
                        "in this attribute only."
                    ),
                ),
                int_input(
                    "components",
                    1000,
                    (1, COMPONENTS_MAX),
                    "Number of leading coefficients used for the fit. The paper uses 1,000 with "
                    "65,000 members: 100 are coarse, 10,000 entangle. Stay well below the number "
                    "of members.",
                ),
                io.String.Input(
                    "attributes", default="", tooltip="Comma-separated attributes. Empty: all."
                ),
            ],
            outputs=[
                _SPACE,
                io.String.Output(
                    display_name="report",
                    tooltip=(
                        "Largest projection, accuracy and reliability of each direction, "
                        "directions that are mere noise, and the most similar pairs."
                    ),
                ),
            ],
        )

    @classmethod
    def execute(
        cls, space: Space, labels: str, method: str, components: int, attributes: str
    ) -> io.NodeOutput:
        remarks: list[str] = []
        every = _labels(space, labels, remarks)
        found = _select(every, attributes)
        if not attributes.strip():
            found, constant = directions.drop_constant_labels(found)
            remarks += constant
        fitted = directions.fit(
            space, found, components=components, method=method, check_stop=check_stop, beside=every
        )
        if not labels.strip() and method == _MEASURED and components >= space.known:
            fitted = directions.with_reach(fitted, space)
        return io.NodeOutput(
            space.with_directions(fitted), "\n".join([directions.describe(fitted), *remarks])
        )


def _agreement(
    lines: list[tuple[str, ...]],
    prompt: str,
    images: list[torch.Tensor],
    names: list[str],
    members: tuple[str, ...],
    clip: CLIP | None,
    clip_vision: ClipVisionModel | None,
) -> tuple[dict[str, torch.Tensor], str]:
    """How well the images of each member agree with each word, NaN without images, and what that
    is.
    """
    from ..common import prompt_alignment
    from .slider_phrases import PLACE, with_phrase

    if not PLACE.search(prompt):
        raise ValueError(
            "The prompt has no WORD that stands for each word: write portrait of a person, WORD."
        )
    if len(images) == 1 and len(names) > 1:
        images = list(images[0].split(1))
    if not images or len(images) != len(names):
        raise ValueError(
            f"There are {len(images)} images and {len(names)} names: connect the images of W2W "
            "Sample's points with the source members, and its names."
        )
    if unknown := next((name for name in names if name not in members), None):
        raise ValueError(
            f"{unknown!r} is not a member of the space: connect W2W Sample with the source members."
        )
    if len({batch.shape[1:] for batch in images}) > 1:
        raise ValueError("The images have different sizes: give images of one size.")
    words = [word for line in lines for word in line]
    try:
        measured = prompt_alignment.measure_all(
            [with_phrase(prompt, word) for word in words],
            torch.cat(images),
            clip,
            clip_vision,
        )
    except prompt_alignment.AbsentError as error:
        raise ValueError(f"The images cannot be compared with words: {error}.") from error
    sizes = [len(batch) for batch in images]
    cosines = {word: torch.full((len(members),), float("nan")) for word in words}
    for word, one in zip(words, measured, strict=True):
        for name, values in zip(names, one.values.split(sizes), strict=True):
            cosines[word][members.index(name)] = values.mean()
    return cosines, measured[0].what


def _texts(source: str, folder: str, members: tuple[str, ...]) -> list[dict[str, int]]:
    """What names each member, by phrase: its file's name, or the tags of its metadata."""
    if source == LabelSource.FILE_NAMES:
        return [{name: 1} for name in members]
    from ..common import lora_reader
    from . import member_labels, member_sources

    if not folder.strip():
        raise ValueError(
            "There is no folder: name the one of the members' files, as in W2W Build Space."
        )
    files = member_sources.file_sources(folders.lora_folder(folder))
    paths = {one.name: one.path for one in files if one.path is not None}
    texts = [
        member_labels.tags_of(lora_reader.read_metadata(paths[name])) if name in paths else {}
        for name in members
    ]
    if not any(texts):
        raise ValueError(
            f"No file in {folder!r} is a member with tags in its metadata: use images or "
            "file_names."
        )
    return texts


def _is_file(text: str) -> bool:
    return "\n" not in text.strip() and text.strip().lower().endswith((".csv", ".json"))


def _labels(space: Space, text: str, remarks: list[str]) -> dict:
    if not text.strip():
        if not space.labels:
            raise ValueError(f"The space {space.name} has no labels: give a table.")
        return space.labels
    from . import labels as tables

    if _is_file(text):
        return tables.read(folders.input_file(text), space, remarks)
    return tables.parse(text, space, remarks)


def _select(found: dict, attributes: str) -> dict:
    names = [name.strip() for name in attributes.split(",") if name.strip()]
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(
            f"There are no labels of '{missing[0]}'. There are labels of {', '.join(found)}."
        )
    return {name: found[name] for name in names} if names else found


NODES = [W2WLabelMembers, W2WFitDirections]
