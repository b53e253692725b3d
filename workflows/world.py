"""The workflows of the demo world: stock nodes on the small model that the pack ships."""

from .authoring import Workflow

_CAPTION = "portrait, light skin, long red hair, sunglasses, smiling, blue hoodie, striped green background"
_OTHER = "portrait, light skin, short black hair, majestic beard, sunglasses, white shirt, plain blue background"


def demo_world_prompt_to_picture(w: Workflow) -> None:
    w.note(
        "From a caption to a picture",
        "**Four faces** are painted by the small model that comes with the pack. It knows only its own world of faces.",
        "**The caption** names skin, hair, facial hair, glasses, mouth, clothing and background. "
        "What it leaves out is left to chance.",
        "**Try** another colour or style in the caption, another seed, or a CFG of 1 to see what the caption does.",
    )
    w.group("Model")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    w.group("Caption and size")
    positive = w.add("CLIPTextEncode", clip=clip, text=_CAPTION, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Nothing (what CFG steers away from)")
    latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=4)
    w.group("Painting")
    samples = w.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent,
                    seed=7, steps=20, cfg=3.0, sampler_name="euler", scheduler="normal")  # fmt: skip
    image = w.add("VAEDecode", samples=samples, vae=vae)
    w.add("SaveImage", images=image, filename_prefix="glassbox/prompt_to_picture")


def demo_world_picture_to_picture(w: Workflow) -> None:
    w.note(
        "From a picture to another",
        "**Two faces** of the demo world are taken, put half into noise, and painted on with another caption.",
        "**What stays** is what is decided while there is much noise: mostly place and size.",
        "**Try** a denoise of 0.3 (little changes) or 0.8 (only a trace stays), or other pictures by their number.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    before, _, _ = w.add("GBX_DemoPicture", picture=0, count=2)
    w.group("Caption")
    positive = w.add("CLIPTextEncode", clip=clip, text=_OTHER, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Nothing (what CFG steers away from)")
    latent = w.add("VAEEncode", pixels=before, vae=vae)
    w.group("Painting on")
    samples = w.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent,
                    seed=7, steps=20, cfg=3.0, sampler_name="euler", scheduler="normal", denoise=0.55)  # fmt: skip
    after = w.add("VAEDecode", samples=samples, vae=vae)
    w.group("Before and after")
    w.add("SaveImage", images=before, filename_prefix="glassbox/picture_before", node_title="Before")
    w.add("SaveImage", images=after, filename_prefix="glassbox/picture_after", node_title="After")
