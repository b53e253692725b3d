"""Nodes for weight spaces: building, loading, saving, importing, and fitting directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from comfy_api.latest import io

from ..host import folders
from ..host.progress import with_progress
from ..host.schema import float_input, int_input, schema
from ..host.sockets import LoraModel, W2WPoint, W2WSpace
from . import directions, space_file
from .build_settings import BuildSettings, MemberNorm, OnMismatch
from .point_inputs import CATEGORY, COMPONENTS_MAX, PAPER
from .quantization import Storage
from .space import Form, Point, Space

if TYPE_CHECKING:
    from ..common.lora_reader import AdapterReader
    from .member_store import MemberSource

_SPACE = W2WSpace.Output(
    display_name="space", tooltip="For W2W Sample, W2W Fit Directions, W2W Project LoRA and others."
)
_REPORT = io.String.Output(
    display_name="report", tooltip="Contents of the space, and skipped files or layers."
)
_STORAGE = {
    "id": "storage",
    "options": list(Storage),
    "default": Storage.FLOAT16,
    "tooltip": (
        "Precision of the basis in the file. float16 halves its size, int8 quarters it (a scale "
        "for each 1,024 numbers). The report gives the measured error."
    ),
}


_IMPORTED = "w2w-people-sd15"
_COMPONENTS = {
    "id": "components",
    "default": 1000,
    "min": 1,
    "max": COMPONENTS_MAX,
    "tooltip": (
        "Number of axes to import, of the official release's 10,000: 1,000 for sampling and "
        "editing, 10,000 (2 GB in float16) for inversion."
    ),
}


def _filename(default: str, **options: bool) -> io.String.Input:
    tooltip = "Name of the file in models/w2w. An existing file is replaced."
    return io.String.Input("filename", default=default, tooltip=tooltip, **options)


def _folder_stamp(name: str) -> str:
    from .member_sources import folder_stamp

    return folder_stamp(folders.lora_folder(name)) if name.strip() else ""


class W2WBuildSpace(io.ComfyNode):
    READS: ClassVar = {"folder": _folder_stamp}
    WRITES: ClassVar = {"filename": folders.new_space}

    EVALUATES = False

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WBuildSpace",
            advanced=("standardize",),
            display_name="W2W Build Space",
            category=CATEGORY,
            description=(
                "Builds a weight space from LoRAs of one base model: every LoRA is a point, the "
                f"axes are the principal components. {PAPER}, section 3.1. Streams the files "
                "block by block, shows progress, and resumes a stopped build."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "lora pca",
                "lora svd",
                "principal components of loras",
            ],
            is_input_list=True,
            inputs=[
                io.String.Input(
                    "folder",
                    default="",
                    tooltip=(
                        "LoRA folder inside models/loras, output or input, searched with "
                        "subfolders. Formats: kohya, diffusers, PEFT, ComfyUI. Empty: only the "
                        "connected LoRAs."
                    ),
                ),
                _filename("my-space"),
                int_input(
                    "rank",
                    128,
                    (0, 2048),
                    "weight_updates: maximum rank of a layer's common basis and of a point; 0: "
                    "no limit. singular_values: each layer of each LoRA is truncated to this "
                    "rank.",
                ),
                float_input(
                    "energy",
                    0.99,
                    (0.5, 1.0, 0.001),
                    "weight_updates: each layer's common basis gets the smallest rank that keeps "
                    "this fraction of the members' mean squared change, up to rank.",
                ),
                int_input(
                    "components",
                    1000,
                    (1, COMPONENTS_MAX),
                    "Number of principal axes to keep, at most the number of LoRAs minus 1. The "
                    "paper edits with 1,000 and inverts with 10,000, from 65,000 members.",
                ),
                io.Combo.Input(
                    "form",
                    options=list(Form),
                    default=Form.WEIGHT_UPDATES,
                    tooltip=(
                        "weight_updates: points are sums of the members' updates; any mix of "
                        "trainers, ranks and LoRA types. as_trained: raw LoRA factors, as in the "
                        "paper; one trainer, initialization and rank. singular_values: factors "
                        "from each layer's largest singular values."
                    ),
                ),
                io.Boolean.Input(
                    "standardize",
                    default=True,
                    tooltip=(
                        "Standardize every value to unit deviation over the members first, as in "
                        "the paper. Off: values with more variance weigh more. No effect on "
                        "weight_updates."
                    ),
                ),
                io.Combo.Input(
                    "on_mismatch",
                    options=list(OnMismatch),
                    tooltip=(
                        "For unusable files (other base model, NaN, duplicates): skip and "
                        "report, or stop with an error. A different declared base model gives a "
                        "warning, or an error."
                    ),
                ),
                io.Combo.Input(**_STORAGE),
                io.Combo.Input(
                    "norm",
                    options=list(MemberNorm),
                    default=MemberNorm.EQUAL,
                    optional=True,
                    tooltip=(
                        "Strength of the members. keep: as stored. equal: all scaled to the "
                        "median norm of dW, so components reflect content instead of training "
                        "strength. No effect on as_trained."
                    ),
                ),
                *(
                    LoraModel.Input(
                        f"lora_{number}",
                        optional=True,
                        tooltip=(
                            "LoRAs from other nodes (Train LoRA, W2W To LoRA), added to the "
                            "folder's. One LoRA or a list."
                        ),
                    )
                    for number in range(1, 5)
                ),
                io.Model.Input(
                    "model",
                    optional=True,
                    tooltip=(
                        "Base model; required for DoRA, OFT and GLoRA, and for convolution "
                        "kernels in LoHa and LoKr."
                    ),
                ),
            ],
            outputs=[_SPACE, _REPORT],
        )

    @classmethod
    def execute(
        cls,
        folder: list[str],
        filename: list[str],
        rank: list[int],
        energy: list[float],
        components: list[int],
        form: list[str],
        standardize: list[bool],
        on_mismatch: list[str],
        storage: list[str],
        norm: list[str] | None = None,
        lora_1: list | None = None,
        lora_2: list | None = None,
        lora_3: list | None = None,
        lora_4: list | None = None,
        model: list | None = None,
    ) -> io.NodeOutput:
        from ..host.adapter_updates import ComfyAdapters
        from ..host.identity import model_digest
        from ..host.lora_targets import base_name
        from . import space_builder, space_report

        connected = (lora_1, lora_2, lora_3, lora_4)
        loras = [lora for loras in connected for lora in loras or () if lora is not None]
        settings = BuildSettings(
            rank=rank[0],
            components=components[0],
            form=form[0],
            standardize=standardize[0],
            on_mismatch=on_mismatch[0],
            storage=storage[0],
            energy=energy[0],
            norm=norm[0] if norm else MemberNorm.EQUAL,
        )
        target = folders.new_space(filename[0])
        sources = _sources(folder[0], loras, ComfyAdapters(model[0] if model else None))
        base = model_digest(model[0]) if model and model[0] is not None else ""
        space = space_builder.build(
            sources,
            settings,
            target=target,
            track=with_progress,
            base=base,
            base_name=base_name(model[0]) if model and base else "",
        )
        text = "\n".join(
            filter(None, [space_report.describe_space(space), space_report.describe_members(space)])
        )
        return io.NodeOutput(space, text)


def _release_stamp(name: str) -> str:
    from . import official_release

    if not name.strip():
        return ""
    folder = folders.spaces_folder(name)
    return " ".join(
        folders.file_stamp(folder / file) for file in (*official_release.NEEDED, "identity_df.csv")
    )


def _imported(folder: str, filename: str, components: int, storage: str) -> io.NodeOutput:
    """The space of the official release, written to a file in models/w2w, and a report."""
    from . import official_release, space_report

    source = folders.spaces_folder(folder)
    target = folders.new_space(filename)
    space, remarks = official_release.convert(
        source, target, components=components, storage=storage, track=with_progress
    )
    return io.NodeOutput(space, f"{remarks}\n{space_report.describe_space(space)}")


def _space_stamp(name: str) -> str:
    path = folders.space_path(name)
    return f"{folders.file_stamp(path)} {folders.file_stamp(path.with_suffix(space_file.MEASURED))}"


class W2WLoadSpace(io.ComfyNode):
    READS: ClassVar = {
        "space_name": _space_stamp,
        "release_folder": _release_stamp,
    }
    WRITES: ClassVar = {"filename": folders.new_space}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WLoadSpace",
            advanced=("release_folder", "filename", "components", "storage"),
            display_name="W2W Load Space",
            category=CATEGORY,
            description=(
                "Loads a weight space from models/w2w or the demo model's space shipped with the "
                "pack. Also converts the official weights2weights release for SD1.5 (V.pt, "
                "mean.pt, std.pt, weight_dimensions.pt, proj_1000pc.pt) to a file there. "
                f"{PAPER}. A basis of 200 MB or more stays on disk until used."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "open space",
                "identity space",
                "saved space",
                "import release",
                "snap-research",
                "V.pt",
            ],
            inputs=[
                io.Combo.Input(
                    "space_name",
                    options=folders.space_names(),
                    tooltip="File in models/w2w, or a space shipped with the pack.",
                ),
                io.String.Input(
                    "release_folder",
                    default="",
                    optional=True,
                    tooltip=(
                        "To import the official release: folder of the downloaded files, e.g. "
                        "weights2weights/files, inside models/w2w or input. Empty: load "
                        "space_name."
                    ),
                ),
                _filename(_IMPORTED, optional=True),
                io.Int.Input(**_COMPONENTS, optional=True),
                io.Combo.Input(**_STORAGE, optional=True),
            ],
            outputs=[_SPACE, _REPORT],
        )

    @classmethod
    def execute(
        cls,
        space_name: str,
        release_folder: str = "",
        filename: str = _IMPORTED,
        components: int = 1000,
        storage: str = Storage.FLOAT16,
    ) -> io.NodeOutput:
        from . import space_report

        if release_folder.strip():
            return _imported(release_folder, filename, components, storage)
        space = space_file.read(folders.space_path(space_name))
        return io.NodeOutput(space, space_report.describe_space(space))


class W2WSaveSpace(io.ComfyNode):
    WRITES: ClassVar = {"filename": folders.new_space}

    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSaveSpace",
            display_name="W2W Save Space",
            category=CATEGORY,
            description=(
                "Saves a weight space with its labels and directions to one file in models/w2w; "
                f"a connected point is added as a new member. {PAPER}."
            ),
            search_aliases=[
                "weight space",
                "weights2weights",
                "export space",
                "quantize basis",
                "add a person",
            ],
            is_output_node=True,
            inputs=[
                W2WSpace.Input("space", tooltip="Space to save, for example with new directions."),
                _filename("my-space-with-directions"),
                io.Combo.Input(**_STORAGE),
                W2WPoint.Input(
                    "new_member",
                    optional=True,
                    tooltip=(
                        "Point of this space to add as a member, e.g. a person from W2W Invert. "
                        "The other members do not change."
                    ),
                ),
                io.String.Input(
                    "member_name", optional=True, default="", tooltip="Name of the new member."
                ),
            ],
            outputs=[_SPACE, _REPORT],
        )

    @classmethod
    def execute(
        cls,
        space: Space,
        filename: str,
        storage: str,
        new_member: Point | None = None,
        member_name: str = "",
    ) -> io.NodeOutput:
        from . import points, space_report

        if new_member is not None:
            points.check_same_space(Point(space, space.coefficients[0], space.name), new_member)
            space = space.with_member(member_name.strip(), new_member.coefficients)
        target = folders.new_space(filename)
        error = space_file.write(space, target, storage, track=with_progress)
        saved = space_file.read(target)
        lines = [f"{target.name}: {target.stat().st_size / 1e6:.1f} MB, storage error {error}."]
        return io.NodeOutput(saved, "\n".join([*lines, space_report.describe_space(saved)]))


def directions_of(space_name: str) -> dict:
    """For the canvas: the directions of a space's file with the ranges of their sliders."""
    return directions.slider_ranges(space_file.read(folders.space_path(space_name)))


def _sources(folder: str, loras: list[dict], adapters: AdapterReader | None) -> list[MemberSource]:
    from .member_sources import file_sources, wire_sources

    files = file_sources(folders.lora_folder(folder), adapters) if folder.strip() else []
    if not files and not loras:
        raise ValueError(
            f"There is no LoRA in {folder!r}: give a folder inside models/loras, or connect LoRAs."
        )
    return files + wire_sources(loras, adapters)


NODES = [W2WLoadSpace, W2WBuildSpace, W2WSaveSpace]
