"""Writes a described workflow as the JSON that the canvas saves (version 0.4)."""

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Callable

from tools.launcher.paths import ROOT
from tools.launcher.widgets import Widget, inputs, widgets

from .authoring import ANY, INPUTS, NOTE, OUTPUTS, Node, Output, Workflow
from .columns import in_columns
from .layout import PREVIEW, Box, Layout, arrange, sockets
from .wires import bends

_VERSION = 0.4
_OPTIONAL_SHAPE = 7  # how LiteGraph draws the socket of an optional input
_GROUP_COLOR, _NOTE_COLOR, _NOTE_BACKGROUND = "#3f789e", "#432", "#2a211a"
_BORDER, _FROM_BORDER = (
    (120, 20),
    60,
)  # size of an end of a subgraph with a row per slot, its distance from the nodes
_ROOM = "glassbox_preview"  # tells web/canvas/room.js how high previews are in this workflow
_VIEW = "view"  # tells it at which zoom and offset the file opens, before anybody has moved it
_OWN = "-1"  # how a subgraph node names an input of its own among the widgets that it shows
_HUB = "https://huggingface.co"
#: Folder below models/ and address of every file that a workflow names and the pack does not bring:
#: ComfyUI offers to fetch what is missing. The addresses are those of ComfyUI's own templates where
#: they have the file.
MODELS = {
    "ae.safetensors": (
        "vae",
        f"{_HUB}/Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/vae/ae.safetensors",
    ),
    "clip_l.safetensors": (
        "text_encoders",
        f"{_HUB}/comfyanonymous/flux_text_encoders/resolve/main/clip_l.safetensors",
    ),
    "flux1-dev-fp8.safetensors": (
        "checkpoints",
        f"{_HUB}/Comfy-Org/flux1-dev/resolve/main/flux1-dev-fp8.safetensors",
    ),
    "flux1-dev.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/flux1-dev/resolve/main/flux1-dev.safetensors",
    ),
    "realisticVisionV51_v51VAE.safetensors": (
        "checkpoints",
        f"{_HUB}/frankjoshua/realisticVisionV51_v51VAE/resolve/main/realisticVisionV51_v51VAE.safetensors",
    ),
    "sd3.5_medium_incl_clips_t5xxlfp8scaled.safetensors": (
        "checkpoints",
        f"{_HUB}/Comfy-Org/stable-diffusion-3.5-fp8/resolve/main/sd3.5_medium_incl_clips_t5xxlfp8scaled.safetensors",
    ),
    "sd_xl_turbo_1.0_fp16.safetensors": (
        "checkpoints",
        f"{_HUB}/stabilityai/sdxl-turbo/resolve/main/sd_xl_turbo_1.0_fp16.safetensors",
    ),
    "sd_xl_base_1.0.safetensors": (
        "checkpoints",
        f"{_HUB}/stabilityai/stable-diffusion-xl-base-1.0/resolve/main/sd_xl_base_1.0.safetensors",
    ),
    "t5xxl_fp16.safetensors": (
        "text_encoders",
        f"{_HUB}/comfyanonymous/flux_text_encoders/resolve/main/t5xxl_fp16.safetensors",
    ),
    "flux-2-klein-4b.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/flux2-klein/resolve/main/split_files/diffusion_models/flux-2-klein-4b.safetensors",
    ),
    "flux2-vae.safetensors": (
        "vae",
        f"{_HUB}/Comfy-Org/flux2-dev/resolve/main/split_files/vae/flux2-vae.safetensors",
    ),
    "krea2_turbo_fp8_scaled.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/Krea-2/resolve/main/diffusion_models/krea2_turbo_fp8_scaled.safetensors",
    ),
    "qwen3vl_4b_fp8_scaled.safetensors": (
        "text_encoders",
        f"{_HUB}/Comfy-Org/Krea-2/resolve/main/text_encoders/qwen3vl_4b_fp8_scaled.safetensors",
    ),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": (
        "text_encoders",
        f"{_HUB}/Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
    ),
    "qwen_3_4b.safetensors": (
        "text_encoders",
        f"{_HUB}/Comfy-Org/z_image_turbo/resolve/main/split_files/text_encoders/qwen_3_4b.safetensors",
    ),
    "qwen_image_2512_fp8_e4m3fn.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/diffusion_models/qwen_image_2512_fp8_e4m3fn.safetensors",
    ),
    "qwen_image_vae.safetensors": (
        "vae",
        f"{_HUB}/Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/vae/qwen_image_vae.safetensors",
    ),
    "umt5_xxl_fp8_e4m3fn_scaled.safetensors": (
        "text_encoders",
        f"{_HUB}/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
    ),
    "v1-5-pruned-emaonly-fp16.safetensors": (
        "checkpoints",
        f"{_HUB}/Comfy-Org/stable-diffusion-v1-5-archive/resolve/main/v1-5-pruned-emaonly-fp16.safetensors",
    ),
    "wan2.1_t2v_1.3B_fp16.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors",
    ),
    "wan_2.1_vae.safetensors": (
        "vae",
        f"{_HUB}/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/vae/wan_2.1_vae.safetensors",
    ),
    "z_image_turbo_bf16.safetensors": (
        "diffusion_models",
        f"{_HUB}/Comfy-Org/z_image_turbo/resolve/main/split_files/diffusion_models/z_image_turbo_bf16.safetensors",
    ),
}
#: The packs that nodes come from, as ComfyUI's registry names them, and a version that has them.
_OURS = {
    "cnr_id": "glassbox",
    "ver": tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"],
}
_PREFIX = "GBX_"
_STOCK = {"cnr_id": "comfy-core", "ver": "0.3.75"}


def make(name: str, describe: Callable[[Workflow], None], object_info: dict) -> dict:
    """The saved canvas of the workflow that the function describes."""
    workflow = Workflow(name, object_info)
    describe(workflow)
    layout = in_columns(workflow) if workflow.in_columns else arrange(workflow)
    links, definitions = _Links(1), {}
    long = {} if workflow.seconds is None else {"seconds": workflow.seconds}
    extra = {
        "ds": layout.view,
        "glassbox": {"kind": str(workflow.kind), "name": name, _VIEW: layout.view, **long},
        _ROOM: PREVIEW,
    } | workflow.extra
    nodes = _nodes(workflow, layout, links, definitions)
    straight = workflow.in_columns  # or no place would have been found
    bent = {} if straight else reroutes(links.saved, layout.nodes, layout.titles(workflow.groups))
    return {
        "id": _uuid(name),
        "revision": 0,
        "last_node_id": max(
            node["id"]
            for graph in (nodes, *(one["nodes"] for one in definitions.values()))
            for node in graph
        ),
        "last_link_id": max(
            (link["id"] for one in definitions.values() for link in one["links"]),
            default=len(links.saved),
        ),
        "nodes": nodes,
        "links": links.saved,
        "groups": [
            _group(number, title, box)
            for number, (title, box) in enumerate(
                zip(workflow.groups, layout.groups, strict=True), 1
            )
        ],
        **({"definitions": {"subgraphs": list(definitions.values())}} if definitions else {}),
        "config": {},
        "extra": extra | bent,
        "version": _VERSION,
    }


def reroutes(links: list[list], boxes: dict[int, Box], titles: list[Box]) -> dict[str, list[dict]]:
    """What version 0.4 keeps of bends: each once for all links of an output, and the last one of
    each link.
    """
    ways = bends(boxes, [tuple(link[1:5]) for link in links], titles)
    ids: dict[tuple, int] = {}
    made: dict[int, dict] = {}
    last = []
    for link in links:
        parent = None
        for point in ways[tuple(link[1:5])]:
            id_ = ids.setdefault((*link[1:3], point), len(ids) + 1)
            before = {} if parent is None else {"parentId": parent}
            made.setdefault(id_, {"id": id_, **before, "pos": list(point), "linkIds": []})[
                "linkIds"
            ].append(link[0])
            parent = id_
        if parent is not None:
            last.append({"id": link[0], "parentId": parent})
    return {"reroutes": list(made.values()), "linkExtensions": last} if last else {}


def to_text(saved: dict) -> str:
    """The text of a workflow file, the same on every system."""
    return json.dumps(saved, indent=1, ensure_ascii=False) + "\n"


class _Links:
    """The links of a workflow or subgraph, numbered as they are made, from ``first`` on: none twice
    in a file.
    """

    def __init__(self, first: int):
        self.first = first
        self.saved: list[list] = []

    def make(self, source: Output | None, target: int, slot: int, kind: str) -> int | None:
        if source is None:
            return None
        link = self.first + len(self.saved)
        kind = kind if source.type == ANY else source.type
        self.saved.append([link, source.node.id, source.slot, target, slot, kind])
        return link

    def leaving(self, node: int, slot: int) -> list[int]:
        return [link[0] for link in self.saved if link[1:3] == [node, slot]]

    def as_objects(self) -> list[dict]:
        names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
        return [dict(zip(names, link, strict=True)) for link in self.saved]


def _nodes(
    workflow: Workflow,
    layout: Layout,
    links: _Links,
    definitions: dict[str, dict],
    leaving: tuple[Output, ...] = (),
) -> list[dict]:
    """The saved nodes, whose links and subgraphs are added to `links` and `definitions`; `leaving`
    it: outputs.
    """
    nodes = [
        _node(node, order, layout.nodes[node.id], links, definitions)
        for order, node in enumerate(workflow.nodes)
    ]
    for slot, output in enumerate(leaving):
        links.make(output, OUTPUTS, slot, output.type)
    for node, saved in zip(workflow.nodes, nodes, strict=True):
        saved["outputs"] = [
            {
                "name": name,
                "type": output.type,
                "links": links.leaving(node.id, output.slot) or None,
            }
            for name, output in zip(node.info["output_name"], node.outputs, strict=True)
        ]
    return nodes


def _definition(node: Node, definitions: dict[str, dict]) -> str:
    """Add what a subgraph node holds to the definitions; returns its id."""
    inside = node.inside
    links = _Links(inside.workflow.first_id)
    layout = arrange(inside.workflow)
    nodes = _nodes(inside.workflow, layout, links, definitions, inside.outputs)
    right = max(box.left + box.width for box in layout.nodes.values())
    given = [
        {"name": input_.name, "type": input_.kind, "linkIds": links.leaving(INPUTS, slot)}
        for slot, input_ in enumerate(inputs(node.info))
    ]
    made = [
        {
            "name": name,
            "type": output.type,
            "linkIds": [link[0] for link in links.saved if link[3:5] == [OUTPUTS, slot]],
        }
        for slot, (name, output) in enumerate(
            zip(node.info["output_name"], inside.outputs, strict=True)
        )
    ]
    content = {
        "version": 1,
        "state": {
            "lastGroupId": 0,
            "lastNodeId": nodes[-1]["id"],
            "lastLinkId": links.saved[-1][0],
            "lastRerouteId": 0,
        },
        "revision": 0,
        "config": {},
        "name": inside.title,
        "inputNode": {
            "id": INPUTS,
            "bounding": [-_BORDER[0] - _FROM_BORDER, 0, _BORDER[0], _BORDER[1] * (len(given) + 2)],
        },
        "outputNode": {
            "id": OUTPUTS,
            "bounding": [right + _FROM_BORDER, 0, _BORDER[0], _BORDER[1] * (len(made) + 2)],
        },
        "inputs": [{"id": _uuid(f"{inside.title}/{one['name']}"), **one} for one in given],
        "outputs": [{"id": _uuid(f"{inside.title}//{one['name']}"), **one} for one in made],
        "widgets": [],
        "nodes": nodes,
        "groups": [],
        "links": links.as_objects(),
        "extra": {},
    }
    identity = _uuid(json.dumps(content))
    definitions[identity] = {"id": identity, **content}
    return identity


def _uuid(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"glassbox/{text}"))


def _node(node: Node, order: int, box: Box, links: _Links, definitions: dict[str, dict]) -> dict:
    saved = {
        "id": node.id,
        "type": _definition(node, definitions) if node.inside else node.type,
        "pos": [box.left, box.top],
        "size": [box.width, box.height],
        "flags": {},
        "order": order,
        "mode": 0,
        "inputs": _sockets(node, links),
        "outputs": [],
        "properties": {} if node.type == NOTE else _properties(node) | node.properties,
        "widgets_values": _values(node),
    }
    if node.title:
        saved["title"] = node.title
    if node.type == NOTE:
        saved |= {"color": _NOTE_COLOR, "bgcolor": _NOTE_BACKGROUND}
    return saved


def _values(node: Node) -> list:
    """Values of the widgets in their order, without the last of our optional ones while they keep
    their default.

    Front ends set as many widgets as there are values: an optional input that is added later
    changes no file. Defaults of other packs may change with their version, so theirs are all
    written.
    """
    known = widgets(node.info)
    while known and node.type.startswith(_PREFIX) and _at_default(known[-1], node):
        known.pop()
    return [node.values[widget.name] for widget in known]


def _at_default(widget: Widget, node: Node) -> bool:
    return widget.optional and node.values[widget.name] == widget.default


def _properties(node: Node) -> dict:
    """What the front end needs to help with a node that is not installed and with files that are
    missing.
    """
    if node.inside:
        return {"proxyWidgets": [[_OWN, widget.name] for widget in widgets(node.info)]}
    named = [value for value in node.values.values() if isinstance(value, str) and value in MODELS]
    properties = {
        "Node name for S&R": node.type,
        **(_OURS if node.type.startswith(_PREFIX) else _STOCK),
    }
    if named:
        properties["models"] = [
            {"name": name, "url": MODELS[name][1], "directory": MODELS[name][0]} for name in named
        ]
    return properties


def _sockets(node: Node, links: _Links) -> list[dict]:
    found = []
    for slot, input_ in enumerate(sockets(node)):
        socket = {
            "name": input_.name,
            "type": input_.kind,
            "link": links.make(node.sources.get(input_.name), node.id, slot, input_.kind),
        }
        if input_.is_widget:
            socket["widget"] = {"name": input_.name}
        elif not input_.required:
            socket["shape"] = _OPTIONAL_SHAPE
        found.append(socket)
    while (
        found
        and node.type.startswith(_PREFIX)
        and found[-1].get("shape")
        and found[-1]["link"] is None
    ):
        found.pop()  # as with values: what is last, optional and without a link
    return found


def _group(number: int, title: str, box: Box) -> dict:
    return {
        "id": number,
        "title": title,
        "bounding": [box.left, box.top, box.width, box.height],
        "color": _GROUP_COLOR,
        "font_size": 24,
        "flags": {},
    }
