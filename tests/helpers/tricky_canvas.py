"""A canvas with everything that stands between a saved workflow and its prompt."""

from __future__ import annotations

from tools.workflows import canvas
from tools.workflows.authoring import Workflow

_MUTED, _BYPASSED = 2, 4
_TEXT = "a // comment\n(red:1.2) /* two\nlines */ \\{b\\|c\\} d|e"


def make(object_info: dict) -> dict:
    """A saved canvas with reroutes, a primitive, muted and bypassed nodes, an upload, comments and
    linked widgets.
    """
    saved = canvas.make("tricky", _describe, object_info)
    modes = {
        "ConditioningZeroOut": _BYPASSED,
        "ConditioningCombine": _BYPASSED,
        "LatentUpscaleBy": _BYPASSED,
    }
    modes |= {"PreviewImage": _MUTED, "ImageInvert": _MUTED}
    for node in saved["nodes"]:
        node["mode"] = modes.get(node["type"], 0)
    sampler = next(node for node in saved["nodes"] if node["type"] == "KSampler")
    for slot in sampler["inputs"][:2]:
        _reroute(saved, slot["link"])
        _reroute(saved, slot["link"])
    _primitive(saved, sampler, "seed", "INT", 99)
    return saved


def _describe(w: Workflow) -> None:
    w.note("Tricky", "One.", "Two.", "Three.")
    w.group("All")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="absent.safetensors")
    text = w.add(
        "CLIPTextEncode",
        clip=clip,
        text="a // comment\n(red:1.2) /* two\nlines */ \\{b\\|c\\} d|e",
        node_title="T",
    )
    nothing = w.add("ConditioningZeroOut", conditioning=text)
    both = w.add("ConditioningCombine", conditioning_1=nothing, conditioning_2=text)
    image, mask = w.add("LoadImage", image="example.png")
    latent = w.add("VAEEncodeForInpaint", pixels=image, vae=vae, mask=mask)
    larger = w.add("LatentUpscaleBy", samples=latent)
    steps = w.add("PrimitiveInt", value=5)
    samples = w.add(
        "KSampler",
        model=model,
        positive=both,
        negative=nothing,
        latent_image=larger,
        steps=steps,
        cfg=2.5,
        seed=3,
    )
    generated = w.add("VAEDecode", samples=samples, vae=vae)
    w.add("PreviewImage", images=generated)
    w.add(
        "SaveImage",
        images=w.add("ImageBatch", image1=generated, image2=w.add("ImageInvert", image=generated)),
    )


def _reroute(saved: dict, link_id: int) -> None:
    """Put a reroute into a link: the link now ends there, and a new one goes on."""
    link = next(link for link in saved["links"] if link[0] == link_id)
    target = next(node for node in saved["nodes"] if node["id"] == link[3])
    slot = link[4]
    reroute = _append(
        saved, "Reroute", [{"name": "", "type": "*", "link": link_id}], [("", link[5])], []
    )
    link[3:5] = [reroute["id"], 0]
    target["inputs"][slot]["link"] = _connect(saved, reroute, target["id"], slot, link[5])


def _primitive(saved: dict, target: dict, name: str, kind: str, value: object) -> None:
    """Let a primitive node give the value of a widget."""
    primitive = _append(saved, "PrimitiveNode", [], [(kind, kind)], [value, "fixed"])
    primitive["outputs"][0]["widget"] = {"name": name}
    target["inputs"].append({"name": name, "type": kind, "widget": {"name": name}, "link": None})
    slot = len(target["inputs"]) - 1
    target["inputs"][slot]["link"] = _connect(saved, primitive, target["id"], slot, kind)


def _append(saved: dict, type_: str, inputs: list, outputs: list, values: list) -> dict:
    saved["last_node_id"] += 1
    node = {
        "id": saved["last_node_id"],
        "type": type_,
        "pos": [60 * saved["last_node_id"], 1500],
        "size": [200, 60],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": inputs,
        "properties": {},
        "widgets_values": values,
        "outputs": [{"name": name, "type": kind, "links": []} for name, kind in outputs],
    }
    saved["nodes"].append(node)
    return node


def _connect(saved: dict, origin: dict, target: int, slot: int, kind: str) -> int:
    saved["last_link_id"] += 1
    saved["links"].append([saved["last_link_id"], origin["id"], 0, target, slot, kind])
    origin["outputs"][0]["links"].append(saved["last_link_id"])
    return saved["last_link_id"]
