"""Weight spaces on the canvas: built from LoRAs, loaded, saved, brought in, and given directions."""

from __future__ import annotations

from comfy_api.latest import io

from ...host import model_folders
from ...host.loops import tracked
from ...host.schema import schema
from ...host.sockets import LoraModel, W2WSpace
from .. import building, directions, labels, official_release, report, sliders, space_files
from ..inputs import CATEGORY, PAPER
from ..quantisation import HALF, STORAGES
from ..sources import file_sources, wire_sources
from ..space import BALANCED, FORMS, Space

_COMPONENTS_MAX = 100_000
_SPACE = W2WSpace.Output(display_name="space", tooltip="For W2W Sample, W2W Fit Directions, W2W Project LoRA ...")
_REPORT = io.String.Output(display_name="report", tooltip="What is in it and what was left out, in words.")
_STORAGE = io.Combo.Input(
    "storage", options=list(STORAGES), default=HALF,
    tooltip="How the file keeps the basis. float16 halves it, int8 quarters it (a scale for each 1,024 numbers); the "
    "report gives the measured error.",
)  # fmt: skip


def _name(default: str) -> io.String.Input:
    return io.String.Input("name", default=default, tooltip="Name of the file in models/w2w; one that is there is "
                           "replaced.")  # fmt: skip


class W2WBuildSpace(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WBuildSpace",
            display_name="W2W Build Space",
            category=CATEGORY,
            description=f"Builds a space from LoRAs of one base model: every LoRA becomes a point, and the axes are "
            f"what they differ in. {PAPER}. Reads from disk block by block, shows progress, and goes on where it was "
            "stopped.",
            search_aliases=["weight space", "weights2weights", "lora pca", "lora svd", "principal components of loras"],
            is_input_list=True,
            inputs=[
                io.String.Input(
                    "folder", default="",
                    tooltip="Folder of LoRAs inside models/loras (or output or input): .safetensors of kohya, "
                    "diffusers, PEFT or ComfyUI, in folders below too. Empty: only the LoRAs on wires.",
                ),
                _name("my-space"),
                io.Int.Input("rank", default=1, min=1, max=64,
                             tooltip="Rank to which each layer of each LoRA is brought. The paper's is 1."),
                io.Int.Input("components", default=1000, min=1, max=_COMPONENTS_MAX,
                             tooltip="Axes to keep, at most one fewer than LoRAs. The paper edits with 1,000 of 65,000 "
                             "members and inverts with 10,000."),
                io.Combo.Input("form", options=list(FORMS), default=BALANCED,
                               tooltip="singular values: makes LoRAs of any trainer, seed and rank comparable, with a "
                               "fixed sign. as trained: takes factors as they are, for LoRAs of one trainer, seed and "
                               "rank, as in the paper."),
                io.Boolean.Input("standardise", default=True,
                                 tooltip="Bring every number to unit deviation over the members first, as in the "
                                 "paper. Off: numbers that vary more count more."),
                io.Combo.Input("unfit", options=list(building.UNFIT),
                               tooltip="What to do with a file that does not fit (other base model, DoRA, LoHa, NaN)."),
                _STORAGE,
                *(LoraModel.Input(f"lora_{number}", optional=True,
                                  tooltip="LoRAs from wires (Train LoRA, W2W To LoRA) to add to those of the folder; a "
                                  "list counts as so many.") for number in range(1, 5)),
            ],
            outputs=[_SPACE, _REPORT],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, folder, **_) -> str:
        """Changes with the files of the folder."""
        try:
            return "\n".join(source.stamp for source in _sources(folder[0] or "", []))
        except (ValueError, TypeError):
            return "absent"

    @classmethod
    def execute(cls, folder, name, rank, components, form, standardise, unfit, storage, **wires) -> io.NodeOutput:
        loras = [lora for wire in sorted(wires) for lora in wires[wire] or () if lora is not None]
        settings = building.Settings(rank[0], components[0], form[0], standardise[0], unfit[0], storage[0])
        target = model_folders.new_space(name[0])
        space = building.build(_sources(folder[0], loras), settings, target, tracked)
        text = "\n".join(filter(None, [report.describe_space(space), report.describe_members(space)]))
        return io.NodeOutput(space, text)


class W2WLoadSpace(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WLoadSpace",
            display_name="W2W Load Space",
            category=CATEGORY,
            description=f"Loads a weight space from models/w2w, or the demo model's that comes with the pack. {PAPER}. "
            "Its basis stays on disk until it is used.",
            search_aliases=["weight space", "weights2weights", "open space"],
            inputs=[io.Combo.Input("space_name", options=model_folders.space_names(),
                                   tooltip="A file of models/w2w, or one of the pack's own.")],
            outputs=[_SPACE, _REPORT],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, space_name: str | None) -> str:
        """Changes with the file."""
        if space_name is None:
            return ""
        try:
            return model_folders.stamp(model_folders.space_path(space_name))
        except ValueError:
            return "absent"

    @classmethod
    def execute(cls, space_name: str) -> io.NodeOutput:
        space = space_files.read(model_folders.space_path(space_name))
        return io.NodeOutput(space, report.describe_space(space))


class W2WSaveSpace(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WSaveSpace",
            display_name="W2W Save Space",
            category=CATEGORY,
            description=f"Writes a weight space with its labels and directions to one file in models/w2w, to be "
            f"shared. {PAPER}.",
            search_aliases=["weight space", "weights2weights", "export space", "quantise basis"],
            is_output_node=True,
            inputs=[
                W2WSpace.Input("space", tooltip="A space, for example with new directions."),
                _name("my-space-with-directions"),
                _STORAGE,
            ],
            outputs=[_SPACE, _REPORT],
        )

    @classmethod
    def execute(cls, space: Space, name: str, storage: str) -> io.NodeOutput:
        target = model_folders.new_space(name)
        error = space_files.write(space, target, storage, track=tracked)
        saved = space_files.read(target)
        lines = [f"{target.name}: {target.stat().st_size / 1e6:.1f} MB, storage error {error}."]
        return io.NodeOutput(saved, "\n".join([*lines, report.describe_space(saved)]))


class W2WImportRelease(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WImportRelease",
            display_name="W2W Import Release",
            category=CATEGORY,
            description=f"Brings the official release of weights2weights for SD1.5 (V.pt, mean.pt, std.pt, "
            f"weight_dimensions.pt, proj_1000pc.pt) into one file of models/w2w. {PAPER}. No pickle is executed.",
            search_aliases=["weight space", "weights2weights", "snap-research", "V.pt"],
            inputs=[
                io.String.Input("folder", default="weights2weights/files",
                                tooltip="Folder of the downloaded files, inside models/w2w or input."),
                _name("w2w-people-sd15"),
                io.Int.Input("components", default=1000, min=1, max=_COMPONENTS_MAX,
                             tooltip="How many of the 10,000 axes to bring in: 1,000 for sampling and editing, 10,000 "
                             "(2 GB in float16) for inversion."),
                _STORAGE,
            ],
            outputs=[_SPACE, _REPORT],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, folder: str | None, **_) -> str:
        """Changes with the files."""
        try:
            place = model_folders.spaces_folder(folder or "")
        except ValueError:
            return "absent"
        return " ".join(model_folders.stamp(place / name) for name in (*official_release.NEEDED, "identity_df.csv"))

    @classmethod
    def execute(cls, folder: str, name: str, components: int, storage: str) -> io.NodeOutput:
        place, target = model_folders.spaces_folder(folder), model_folders.new_space(name)
        space, told = official_release.convert(place, target, components, storage, tracked)
        return io.NodeOutput(space, f"{told}\n{report.describe_space(space)}")


class W2WFitDirections(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="GBX_W2WFitDirections",
            display_name="W2W Fit Directions",
            category=CATEGORY,
            description=f"Finds in a space the direction of each attribute from labels of its members, for W2W Edit. "
            f"{PAPER}, section 3.3.",
            search_aliases=["weight space", "weights2weights", "attribute direction", "linear classifier", "slider"],
            inputs=[
                W2WSpace.Input("space", tooltip="Space whose members the labels are of."),
                io.String.Input("labels", default="", multiline=True,
                                tooltip="Empty: the space's own labels. Else a table, or the name of a .csv or .json "
                                f"file in ComfyUI's input folder, such as\n{labels.EXAMPLE}"),
                io.Combo.Input("method", options=list(directions.METHODS),
                               tooltip="The paper's least squares, or a classifier of scikit-learn. All report "
                               "cross-validated accuracy."),
                io.Int.Input("components", default=1000, min=1, max=_COMPONENTS_MAX,
                             tooltip="Fit on this many first coefficients. The paper takes 1,000 of 65,000 members: "
                             "100 are coarse, 10,000 entangle. Stay well below the number of members."),
                io.String.Input("attributes", default="",
                                tooltip="Which attributes, apart by commas. Empty: all."),
            ],
            outputs=[
                _SPACE,
                io.String.Output(display_name="report", tooltip="Reach, accuracy and the pairs most alike."),
            ],
        )  # fmt: skip

    @classmethod
    def fingerprint_inputs(cls, labels: str | None, **_) -> str:
        """Changes with the file of labels."""
        try:
            return model_folders.stamp(model_folders.input_file(labels)) if _is_file(labels or "") else ""
        except ValueError:
            return "absent"

    @classmethod
    def execute(cls, space: Space, labels: str, method: str, components: int, attributes: str) -> io.NodeOutput:
        found, told = _chosen(_labels(space, labels), attributes), []
        if not attributes.strip():
            found, told = directions.varying(found)
        fitted = directions.fit(space, found, components, method)
        return io.NodeOutput(space.with_directions(fitted), "\n".join([directions.describe(fitted), *told]))


def directions_of(space_name: str) -> dict:
    """For the canvas: the directions of a space's file, with the ranges of their sliders."""
    return sliders.outline(space_files.read(model_folders.space_path(space_name)))


def _sources(folder: str, loras: list[dict]) -> list[building.Source]:
    files = file_sources(model_folders.lora_folder(folder)) if folder.strip() else []
    if not files and not loras:
        raise ValueError(f"There is no LoRA in '{folder}': give a folder inside models/loras, or connect LoRAs.")
    return files + wire_sources(loras)


def _is_file(text: str) -> bool:
    return "\n" not in text.strip() and text.strip().lower().endswith((".csv", ".json"))


def _labels(space: Space, text: str) -> dict:
    if not text.strip():
        if not space.labels:
            raise ValueError(f"The space {space.name} has no labels: give a table of them.")
        return space.labels
    if _is_file(text):
        text = model_folders.input_file(text).read_text("utf-8")
    return labels.parse(text, space)


def _chosen(found: dict, attributes: str) -> dict:
    wanted = [name.strip() for name in attributes.split(",") if name.strip()]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"There are no labels of '{missing[0]}': there are {', '.join(found)}.")
    return {name: found[name] for name in wanted} if wanted else found
