"""The portrait desks: nodes of several families work on one image, each part with a switch."""

from __future__ import annotations

from collections.abc import Callable

from .activations import SDXL
from .authoring import Output, Workflow
from .sampling import encode

_TEXT = "portrait, blue hoodie, smiling, open eyes, plain background"
_PHOTO = "a photo of a woman with brown hair in a red coat, a street in the background"
_LIVE = {"glassbox_live": True}
_SWITCH = (
    "**Each part has a switch**: select *Higher Resolution*, *Composition Noise*, *Scout* or "
    "*Word map* and press Ctrl+B, which bypasses it. What is scouted is what is sampled: one "
    "noise goes through all of them."
)


def demo_noise_portrait_desk(w: Workflow) -> None:
    w.note(
        "Portrait desk",
        "**A larger size, a layout** from a mask in two colors, **the most similar of eight "
        "seeds**, a "
        "person with sliders, and where each word acts.",
        _SWITCH,
        "**Live**: bypass *Higher Resolution*, *Scout* and *Word map*, and the image follows each "
        "slider within two seconds on two quiet cores.",
        "**Try** other colors, sliders and seeds, another member_name, your own mask.",
    )
    w.group("Person and size")

    def person(
        w: Workflow, member_name: Output, prompt: Output, noise_seed: Output, image_index: Output
    ) -> dict[str, Output]:
        model, clip, vae = w.add("GBX_LoadDemoModel")
        space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
        space, _ = w.add("GBX_W2WFitDirections", space=space)
        point, _, _ = w.add("GBX_W2WSample", space=space, source="member", member_name=member_name)
        positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
        negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Negative prompt")
        latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=1)
        noise = w.add("RandomNoise", noise_seed=noise_seed)
        reference, mask, _ = w.add("GBX_DemoPicture", image_index=image_index, count=1, part="face")
        made = {
            "model": model,
            "latent": latent,
            "point": point,
            "noise": noise,
            "reference": reference,
            "mask": mask,
        }
        return made | {"positive": positive, "negative": negative, "vae": vae, "clip": clip}

    names = (
        "model",
        "latent",
        "point",
        "noise",
        "reference",
        "mask",
        "positive",
        "negative",
        "vae",
        "clip",
    )
    shown = {"member_name": "person_0001", "prompt": _TEXT, "noise_seed": 20, "image_index": 5}
    ready = dict(zip(names, w.subgraph("Person, prompt and layout", person, **shown), strict=True))
    point, noise, reference, mask = (
        ready.pop(name) for name in ("point", "noise", "reference", "mask")
    )
    _enlarged(w, ready, 160)
    w.group("Layout and seed")

    def apply(w: Workflow, model: Output, point: Output) -> Output:
        return w.add("GBX_W2WApply", model=model, point=point)[0]

    noise = _composed(w, ready, noise, mask)

    def scout(
        w: Workflow, noise: Output, point: Output, model: Output, **given: Output
    ) -> dict[str, Output]:
        given |= {
            "model": apply(w, model, point),
            "ranking": "layout_likeness",
            "steps": 4,
            "cfg": 3.0,
        }
        _, _, sheet, _, best = w.add("GBX_SeedScout", noise=noise, keep=1, batch_size=8, **given)
        return {"noise": best, "sheet": sheet}

    given = {name: wire for name, wire in ready.items() if name != "clip"}
    noise, sheet = w.subgraph(
        "Scout", scout, noise=noise, point=point, reference=reference, **given, count=8
    )
    w.add("PreviewImage", images=sheet, node_title="Scouted seeds", node_size=(260, 200))
    w.group("Drag the sliders")
    edited, _ = w.add(
        "GBX_W2WEdit", point=point, edits="beard: 1", node_properties=_LIVE, node_size=(340, 580)
    )
    image, large = _generated(w, ready, noise, apply, {"point": edited}, steps=12, cfg=3.0)
    _shown(w, large, "portrait_desk", "Portrait", 400)
    _shown(
        w,
        _mapped(w, ready, image, _TEXT, "hoodie, smiling, eyes"),
        "portrait_desk_words",
        "Where words act",
        220,
    )


def sdxl_noise_portrait_desk(w: Workflow) -> None:
    w.note(
        "SDXL: portrait desk",
        "**A larger size, a layout** from a mask in two colors, **the one of eight seeds "
        "that shows its words best**, "
        "words changed by sliders, and where each word acts.",
        _SWITCH,
        "**Live**: bypass *Higher Resolution*, *Scout* and *Word map*, and the image follows each "
        "slider.",
        "**Not measured on SDXL**: strengths and colors are those of the demo model. **Try** your "
        "own mask and words.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SDXL)
    positive, negative = encode(w, clip, _PHOTO)

    def start(w: Workflow, noise_seed: Output) -> dict[str, Output]:
        part = w.add("SolidMask", value=1.0, width=512, height=768, node_title="Person")
        whole = w.add("SolidMask", value=0.0, width=1024, height=1024, node_title="Whole image")
        latent = w.add("EmptyLatentImage", width=1024, height=1024, batch_size=1)
        mask = w.add("MaskComposite", destination=whole, source=part, x=256, y=256, operation="add")
        return {
            "latent": latent,
            "noise": w.add("RandomNoise", noise_seed=noise_seed),
            "mask": mask,
        }

    latent, noise, mask = w.subgraph("Seed, and a person in the middle", start, noise_seed=20)
    w.group("Size, layout and seed")
    ready = {
        "model": model,
        "latent": latent,
        "positive": positive,
        "negative": negative,
        "vae": vae,
        "clip": clip,
    }
    _enlarged(w, ready, 1536)

    noise = _composed(w, ready, noise, mask, foreground="#b03028", background="#8090a0")

    def scout(w: Workflow, noise: Output, words: Output, **given: Output) -> Output:
        given |= {
            "prompt": _PHOTO,
            "words": words,
            "ranking": "word_coverage",
            "steps": 6,
            "cfg": 6.0,
        }
        *_, sheet, _, best = w.add("GBX_SeedScout", noise=noise, keep=1, **given)
        w.add("PreviewImage", images=sheet)
        return best

    noise = w.subgraph("Scout", scout, noise=noise, **ready, words="red coat, street", count=8)
    w.group("Drag the sliders")
    edits = {
        "edits": "brown hair -> red hair: 2, red coat -> blue coat: 0",
        "prompt": _PHOTO,
        "start_percent": 0.25,
    }
    ready["model"], _ = w.add(
        "GBX_EditByWords",
        model=ready["model"],
        clip=clip,
        **edits,
        node_properties=_LIVE,
        node_size=(340, 560),
    )
    w.group("Portrait")
    image, _ = _generated(w, ready, noise, None, {}, steps=25, cfg=6.0)
    _shown(w, image, "sdxl_desk", "Portrait", 400)
    _shown(
        w,
        _mapped(w, ready, image, _PHOTO, "woman, hair, coat, street"),
        "sdxl_desk_words",
        "Where words act",
        220,
    )


def _enlarged(w: Workflow, ready: dict[str, Output], side: int) -> None:
    """MODEL and LATENT for a larger size."""

    def inside(
        w: Workflow, model: Output, latent: Output, width: Output, height: Output
    ) -> dict[str, Output]:
        size = {
            "width": width,
            "height": height,
            "upscale_method": "nearest-exact",
            "crop": "disabled",
        }
        larger = w.add("LatentUpscale", samples=latent, **size)
        return {"model": w.add("GBX_PositionalResample", model=model)[0], "latent": larger}

    given = {"model": ready["model"], "latent": ready["latent"], "width": side, "height": side}
    ready["model"], ready["latent"] = w.subgraph("Higher Resolution", inside, **given)


def _composed(
    w: Workflow, ready: dict[str, Output], noise: Output, mask: Output, **colors: str
) -> Output:
    """NOISE in the order of a mask in two colors."""
    given = {"latent": ready["latent"], "model": ready["model"], "mask": mask, "noise": noise}
    return w.add("GBX_CompositionNoise", **given, **colors)[0]


def _generated(
    w: Workflow, ready: dict, noise: Output, patch: Callable | None, more: dict, **n: float
) -> tuple[Output, Output]:
    """The image of a NOISE, and large; ``ready`` then holds its MODEL. ``patch``: what is done to
    the MODEL first.
    """

    def inside(
        w: Workflow, noise, latent, positive, negative, vae, steps, cfg, **model: Output
    ) -> dict[str, Output]:
        made = patch(w, **model) if patch else model["model"]
        guider = w.add("CFGGuider", model=made, positive=positive, negative=negative, cfg=cfg)
        sampler = w.add("KSamplerSelect", sampler_name="euler")
        sigmas = w.add("BasicScheduler", model=made, scheduler="normal", steps=steps, denoise=1.0)
        given = {
            "noise": noise,
            "guider": guider,
            "sampler": sampler,
            "sigmas": sigmas,
            "latent_image": latent,
        }
        image = w.add("VAEDecode", samples=w.add("SamplerCustomAdvanced", **given)[0], vae=vae)
        if not patch:
            return {"image": image}
        size = {"width": 768, "height": 768, "upscale_method": "lanczos", "crop": "disabled"}
        return {"image": image, "large": w.add("ImageScale", image=image, **size), "model": made}

    wires = {name: ready[name] for name in ("latent", "positive", "negative", "vae")}
    found = w.subgraph("Generate", inside, noise=noise, **wires, **n, model=ready["model"], **more)
    if not patch:
        return found, found
    *images, ready["model"] = found
    return tuple(images)


def _mapped(
    w: Workflow, ready: dict[str, Output], image: Output, prompt: str, words: str
) -> Output:
    """The image and where its words act."""

    def inside(
        w: Workflow, image, model, positive, vae, clip, prompt: Output, words: Output
    ) -> Output:
        tap = {
            "model": model,
            "image": image,
            "vae": vae,
            "positive": positive,
            "preset": "cross_attention",
            "seed": 1,
        }
        tapped = w.add("GBX_LayerActivationTap", **tap)[0]
        size = {"width": 384, "height": 384, "upscale_method": "lanczos", "crop": "disabled"}
        image = w.add("ImageScale", image=image, **size)
        return w.add(
            "GBX_TokenHeatMap",
            activations=tapped,
            image=image,
            clip=clip,
            prompt=prompt,
            words=words,
        )[0]

    wires = {name: ready[name] for name in ("model", "positive", "vae", "clip")}
    return w.subgraph("Word map", inside, image=image, **wires, prompt=prompt, words=words)


def _shown(w: Workflow, image: Output, file: str, title: str, height: int) -> None:
    w.add(
        "SaveImage",
        images=image,
        filename_prefix=f"glassbox/{file}",
        node_title=title,
        node_size=(370, height),
    )
