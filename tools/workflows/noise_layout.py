"""The workflows of Composition Noise with a mask in two colors."""

from .authoring import Output, Workflow
from .noise import COMPOSED, TOWN
from .sampling import encode


def demo_noise_composition_mask(w: Workflow) -> None:
    w.note(
        "A layout from a mask alone",
        "**A mask in two colors** is the guide: skin inside, blue outside. Composition Noise "
        "orders the low frequencies of the noise as those of the guide (after arXiv 2406.12303). "
        "No VAE is needed.",
        "**Noise as drawn** and **Composed noise** are the same seeds without and with it.",
        "**Try** other colors, shape firm, your own mask (Load Image), or images of the model as "
        "guide: their mean values inside and outside of the mask are then the two colors.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    positive, negative = encode(w, clip, COMPOSED)
    w.group("Guide")
    _, mask, _ = w.add("GBX_DemoPicture", image_index=5, count=1, part="face")
    shown = w.add("MaskToImage", mask=mask)
    _composition(w, model, vae, positive, negative, shown, 128, 3.0, 16, mask=mask, shape="soft")


def sdxl_noise_composition(w: Workflow) -> None:
    w.note(
        "SDXL: a layout from noise alone",
        "**A mask in two colors** is the guide: warm light on the left, dark blue on the right. "
        "Composition Noise reorders the noise so that its low frequencies follow the guide (after "
        "arXiv 2406.12303).",
        "**Noise as drawn** and **Composed noise** are the same seeds without and with it.",
        "**Not tried on SDXL yet**: strength, cutoff and shape are those that worked best on the "
        "demo model. **Try** your own mask (Load Image), other colors, shape firm, or a photo "
        "through VAE Encode as guide, without a mask.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
    positive, negative = encode(w, clip, TOWN)
    w.group("Guide")

    def halves(w: Workflow) -> dict[str, Output]:
        left = w.add("SolidMask", value=1.0, width=512, height=1024, node_title="Left")
        whole = w.add("SolidMask", value=0.0, width=1024, height=1024, node_title="Whole image")
        mask = w.add("MaskComposite", destination=whole, source=left, x=0, y=0, operation="add")
        return {"mask": mask, "image": w.add("MaskToImage", mask=mask)}

    mask, shown = w.subgraph("The left half", halves)
    colors = {"foreground": "#f0b060", "background": "#101840"}
    _composition(
        w, model, vae, positive, negative, shown, 1024, 7.0, 25, mask=mask, shape="soft", **colors
    )


def _composition(
    w: Workflow,
    model,
    vae,
    positive,
    negative,
    shown: Output,
    side: int,
    cfg: float,
    steps: int,
    **guide: Output | str,
) -> None:
    """The same seeds with the noise as drawn and composed after a guide."""
    w.group("Noise")
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=4)
    _, composed, seed, report, figure = w.add(
        "GBX_CompositionNoise",
        latent=latent,
        seed=21,
        strength=0.8,
        cutoff=2.0,
        model=model,
        **guide,
    )
    w.group("Sampling")
    given = {
        "model": model,
        "positive": positive,
        "negative": negative,
        "steps": steps,
        "cfg": cfg,
        "sampler_name": "euler",
        "scheduler": "normal",
        "seed": seed,
    }
    images = [
        w.add(
            "VAEDecode",
            samples=w.add("KSampler", latent_image=x, node_title=f"KSampler: {what}", **given),
            vae=vae,
        )
        for x, what in ((latent, "noise as drawn"), (composed, "composed noise"))
    ]
    w.group("Side by side")
    w.add(
        "SaveImage",
        images=images[1],
        filename_prefix="glassbox/composed",
        node_title="Composed noise",
    )
    w.add(
        "SaveImage",
        images=images[0],
        filename_prefix="glassbox/as_drawn",
        node_title="Noise as drawn",
    )
    w.add(
        "SaveImage",
        images=shown,
        filename_prefix="glassbox/guide",
        node_title="Guide",
        node_size=(300, 300),
    )
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/composition",
        node_title="Low frequencies",
    )
    w.add("PreviewAny", source=report, node_title="Report")
