"""The workflows of the conditioning family: size metadata, its gate and its strength, padding, and
larger images.
"""

from __future__ import annotations

from .authoring import Output, Workflow
from .front import for_generating, labeled, prepare, shape_of, show
from .sampling import empty_latent, encode, generate, generate_each, sample, sampler_of

_PAPER = "arXiv 2411.03177"
_FACE = (
    "portrait, light skin, long red hair, shaven, sunglasses, blue hoodie, smiling, striped green "
    "background"
)
_OTHER = (
    "portrait, light skin, short black hair, shaven, round glasses, red sweater, serious, plain "
    "yellow background"
)
_SHORT = "portrait, light skin, black afro, sunglasses"
_VAGUE, _SEEDS = "portrait, long red hair, blue hoodie", 4
_PHOTO = "a photo of a lighthouse on a cliff, evening light"
_NEGATIVE = "Negative prompt (empty)"
_SD15, _SDXL = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"
_SD3, _FLUX = "sd3.5_medium_incl_clips_t5xxlfp8scaled.safetensors", "flux1-dev-fp8.safetensors"


def demo_conditioning_size_sweep(w: Workflow) -> None:
    w.note(
        "Another size, the same image",
        f"**Three original sizes** with the same noise: 32 (blurred), 64, 128 ({_PAPER}). Only the "
        "prompt gets the size, so that CFG strengthens it.",
        "**Stock:** the size acts at every step, and changes the face too. **Gated:** it acts "
        "late, when the content is settled, and blurs less; the figure shows when.",
        "**Try** exponent 8 (later), mode value, or the constant curve, which is the stock row "
        "again.",
    )
    model, clip, vae = _demo(w)
    _size_sweep(w, model, clip, vae, _FACE, 128, (32, 64, 128), cfg=3.0, steps=20)


def sdxl_conditioning_size_sweep(w: Workflow) -> None:
    w.note(
        "SDXL: another size, the same image",
        f"**Three original sizes** of the prompt with the same noise: 256, 512, 1024 ({_PAPER}).",
        "**Stock:** the size acts at every step. **Gated:** it acts late. SDXL was not trained "
        "with the gate.",
        "**Try** exponent 8 (later), mode value, or the constant curve, which is the stock row "
        "again.",
    )
    model, clip, vae = _checkpoint(w, _SDXL)
    _size_sweep(w, model, clip, vae, _PHOTO, 1024, (256, 512, 1024), cfg=7.0, steps=25)


def demo_conditioning_size_sheet(w: Workflow) -> None:
    w.note(
        "One sheet over the original size",
        "**Four original sizes** from a quarter of the image to twice it, with the same noise "
        f"({_PAPER}). Only the prompt gets them, so that CFG strengthens them.",
        "**Stock**, the upper row: small sizes blur the image and change the face. **Gated**, the "
        "lower row, so that the size acts late: the same face at every size, with less blur.",
        "**Twice the image** changes nothing here: the demo model takes larger sizes as its own. "
        "**Try** field crop_top, and apply_to both, as most workflows set it.",
    )
    model, clip, vae = _demo(w)
    _size_sheet(w, model, clip, vae, _FACE, 128, cfg=3.0, steps=12, values="0.25, 0.5, 1, 2")


def sdxl_conditioning_size_sheet(w: Workflow) -> None:
    w.note(
        "SDXL: one sheet over the original size",
        "**Five original sizes** from 256 to 4096 for an image of 1024, with the same noise "
        f"({_PAPER}).",
        "**Stock** in the upper row, **gated** in the lower, so that the size acts late.",
        "**Try** field crop_left or crop_top, other values, and your own prompt.",
    )
    model, clip, vae = _checkpoint(w, _SDXL)
    _size_sheet(w, model, clip, vae, _PHOTO, 1024, cfg=7.0, steps=25)


def demo_conditioning_guider_grid(w: Workflow) -> None:
    w.note(
        "How strongly the metadata guides",
        f"**An original size of 48**, with the metadata's own strength β at 0, 1 and 2 ({_PAPER}).",
        "**At 0** it is as if set to the full size, **at 1** as in KSampler, **at 2** "
        "exaggerated. The strength of the text is the same in all.",
        "**Try** a crop instead of a size, or fields 'all' with mirror.",
    )
    model, clip, vae = _demo(w)
    _guider_grid(w, model, clip, vae, _FACE, 128, 48, cfg=3.0, steps=20)


def sdxl_conditioning_guider_grid(w: Workflow) -> None:
    w.note(
        "How strongly the metadata guides SDXL",
        "**An original size of 384**, with the metadata's own strength β at 0, 1 and 2"
        f" ({_PAPER}).",
        "**At 0** it is as if set to the full size, **at 1** as in KSampler, **at 2** exaggerated.",
        "**Try** a crop instead of a size: it moves the subject.",
    )
    model, clip, vae = _checkpoint(w, _SDXL)
    _guider_grid(w, model, clip, vae, _PHOTO, 1024, 384, cfg=7.0, steps=25)


def demo_conditioning_replicate_padding(w: Workflow) -> None:
    w.note(
        "What fills the padding of a short prompt",
        "**Four fillings** of the empty slots behind the same words: stock, zeros, copies, noisy "
        f"copies ({_PAPER}).",
        "**The demo model** was trained with stock padding and not with the others. The paper's "
        "gain comes from training with noisy copies.",
        "**Try** more strength, or a prompt of one word.",
    )
    model, clip, vae = _demo(w)
    _paddings(w, model, clip, vae, _SHORT, 128, cfg=3.0, steps=20)


def sd15_conditioning_replicate_padding(w: Workflow) -> None:
    _checkpoint_paddings(w, "SD1.5", _SD15, 512, 7.0)


def sdxl_conditioning_replicate_padding(w: Workflow) -> None:
    _checkpoint_paddings(w, "SDXL", _SDXL, 1024, 7.0)


def flux_conditioning_replicate_padding(w: Workflow) -> None:
    _checkpoint_paddings(w, "Flux", _FLUX, 1024, 1.0)


def demo_conditioning_resolution_rescale(w: Workflow) -> None:
    w.note(
        "Larger than trained: more noise",
        "**The demo model** was trained at 128 pixels. Two faces of 192 pixels are noised and "
        "sampled again with another caption at denoise 0.6, on the model's own schedule and with "
        f"its noise rescaled by 1.5 ({_PAPER}). Higher Resolution keeps faces whole in both.",
        "**A larger image shows through more noise.** With the rescaled noise less of the first "
        "face is left, and more of the caption appears.",
        "**From pure noise** (an empty latent at denoise 1) both look alike on this model.",
        "**Try** other values of denoise, or mode retimed, which gives the model a lower timestep "
        "than the noise has.",
    )
    model, clip, vae = _demo(w)
    prompts = encode(w, clip, _OTHER)
    w.group("Images of 192 pixels")
    faces, _, _ = w.add("GBX_DemoPicture", image_index=0, count=2)
    larger = w.add(
        "ImageScale", image=faces, upscale_method="bicubic", width=192, height=192, crop="disabled"
    )
    latent = w.add("VAEEncode", pixels=larger, vae=vae)
    higher, _ = w.add("GBX_PositionalResample", model=model)
    _rescaled(
        w,
        higher,
        prompts,
        vae,
        192,
        "1.5 times",
        cfg=3.0,
        steps=20,
        latent=latent,
        before=larger,
        denoise=0.6,
    )


def sd15_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "SD1.5", _SD15, 768, "1.5 times", 7.0)


def sdxl_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "SDXL", _SDXL, 1536, "1.5 times", 7.0)


def flux_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "Flux", _FLUX, 2048, "2 times", 1.0)


def demo_conditioning_higher_resolution(w: Workflow) -> None:
    w.note(
        "Go beyond the training size",
        "**The demo model** was trained at 128 pixels. At 192 it puts the face low or adds a "
        "second one.",
        "**Higher Resolution** keeps the features inside the network at their trained size for "
        "the first half of sampling, while the layout forms: one face in the middle.",
        "**Try** 256 as width and height, other seeds, and downscale_end_percent 0, which gives "
        "the stock image.",
    )
    w.in_columns = True
    w.group("Larger than trained")

    def larger(
        w: Workflow, ready: dict[str, Output], width: Output, height: Output
    ) -> dict[str, Output]:
        latent = w.add("EmptyLatentImage", width=width, height=height, batch_size=2)
        return {**for_generating(ready), "latent": latent}

    ready = prepare(w, "Model, prompt and size", larger, _FACE, width=192, height=192)
    w.group("Higher Resolution")
    higher, _ = w.add("GBX_PositionalResample", model=ready["model"])
    w.group("The same noise, before and after")

    def inside(w: Workflow, model, higher, vae, latent, **given: Output) -> Output:
        stock, whole = (
            sample(w, vae, sampler=sampler_of(w), model=one, latent_image=latent, **given)
            for one in (model, higher)
        )
        shown = [
            w.add("ImageFromBatch", image=one, batch_index=number, length=1)
            for number in (0, 1)
            for one in (stock, whole)
        ]
        return labeled(w, shown, ("stock", "Higher Resolution") * 2, 2, 384)

    sheet = w.subgraph("Generate both", inside, **ready, higher=higher, seed=7, steps=20, cfg=3.0)
    show(w, sheet, "higher", "Before and after", shape_of(2, 2, 384))


def demo_conditioning_seed_variety(w: Workflow) -> None:
    w.note(
        "Seeds that differ more",
        "**Four seeds of one prompt**, above with the stock model, below with Seed Variety: noise "
        "stands for the prompt while the composition forms, and the prompt comes back before the "
        "details do (condition annealing, CADS, arXiv 2310.17347).",
        "**It is for models that give one face for every seed**, such as distilled ones. The price "
        "is the prompt: the more the images differ, the less of it they show. tau1 and tau2 are "
        "lower here than by default, so that the noise stays longer.",
        "**Try** tau1 0.6 and tau2 0.9 (less variety), and another seed of the node at the same "
        "seed of the sampler. On models of four steps try method constant, tau1 0.8, "
        "noise_scale 2.",
    )
    w.in_columns = True
    w.group("Model and prompt")

    def seeds(w: Workflow, ready: dict[str, Output]) -> dict[str, Output]:
        latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=_SEEDS)
        return {**for_generating(ready), "latent": latent}

    ready = prepare(w, "Model and prompt", seeds, _VAGUE)
    w.group("Seed Variety")
    times = {"tau1": 0.4, "tau2": 0.7}
    varied, _ = w.add("GBX_SeedVariety", model=ready["model"], seed=3, **times)
    w.group("Four seeds, before and after")

    def inside(w: Workflow, model, varied, vae, latent, **given: Output) -> Output:
        batches = [
            sample(w, vae, sampler=sampler_of(w), model=one, latent_image=latent, **given)
            for one in (model, varied)
        ]
        shown = [
            w.add("ImageFromBatch", image=batch, batch_index=number, length=1)
            for batch in batches
            for number in range(_SEEDS)
        ]
        names = ("stock",) * _SEEDS + ("Seed Variety",) * _SEEDS
        return labeled(w, shown, names, _SEEDS, 256)

    sheet = w.subgraph("Generate both", inside, **ready, varied=varied, seed=7, steps=20, cfg=3.0)
    show(w, sheet, "seed_variety", "Before and after", shape_of(_SEEDS, 2, 256), 480)


def sdxl_conditioning_higher_resolution(w: Workflow) -> None:
    _checkpoint_higher(w, "SDXL", _SDXL, 2048, "inner features at their trained size", 7.0)


def flux_conditioning_higher_resolution(w: Workflow) -> None:
    _checkpoint_higher(
        w, "Flux", _FLUX, 2048, "rotary positions scaled by the timestep (arXiv 2510.20766)", 1.0
    )


def sd3_conditioning_larger_images(w: Workflow) -> None:
    w.note(
        "SD3 beyond its size: positions and noise",
        "**Positions** are interpolated inside the trained range instead of extrapolated, "
        f"**noise** is rescaled for the size ({_PAPER}).",
        "**Two images** of the same noise, with the stock model and with both.",
        "**Try** each alone, another alignment, or the base size that your SD3.5 was trained at.",
    )
    model, clip, vae = _checkpoint(w, _SD3)
    prompts = encode(w, clip, _PHOTO)
    w.group("Positions")
    positioned, report = w.add("GBX_PositionalResample", model=model)
    w.add("PreviewAny", source=report, node_title="Positions")
    _rescaled(w, model, prompts, vae, 1536, "1.5 times", cfg=4.5, steps=25, moved=positioned)


def _demo(w: Workflow) -> tuple[Output, ...]:
    w.group("Model")
    return w.add("GBX_LoadDemoModel")


def _checkpoint(w: Workflow, name: str) -> tuple[Output, ...]:
    w.group("Model")
    return w.add("CheckpointLoaderSimple", ckpt_name=name)


def _size_sweep(
    w: Workflow, model, clip, vae, text: str, side: int, sizes: tuple, cfg: float, steps: int
) -> None:
    prompts = encode(w, clip, text)
    w.group("Gate")
    sigmas = w.add("BasicScheduler", model=model, scheduler="normal", steps=steps)
    gated, figure, _ = w.add("GBX_MetadataSchedule", model=model, sigmas=sigmas)
    latent = empty_latent(w, side, 1)
    w.group("Original sizes")

    labels = [f"size {size}, {name}" for name in ("stock", "gated") for size in sizes]
    sampler = sampler_of(w)

    def inside(w: Workflow, model, gated, positive, **given: Output) -> dict[str, Output]:
        sized = [_sized(w, model, positive, size) for size in sizes]
        images = [
            sample(w, model=one, sampler=sampler, positive=text, **given)
            for one in (model, gated)
            for text in sized
        ]
        return {
            "figure": labeled(w, images, labels, len(sizes), max(side, 256)),
            "smallest": sized[0],
        }

    given = {"positive": prompts[0], "negative": prompts[1], "latent_image": latent, "vae": vae}
    numbers = {"seed": 7, "steps": steps, "cfg": cfg}
    sheet, smallest = w.subgraph(
        "Generate each size", inside, model=model, gated=gated, **given, **numbers
    )
    show(w, sheet, "size_sweep", "Stock and gated", shape_of(len(sizes), 2, 256, grid=True), 480)
    w.group("Size metadata at each step")
    _save(w, figure, "size_gate", "The gate")
    metadata, _ = w.add(
        "GBX_MetadataReport",
        model=gated,
        positive=smallest,
        negative=prompts[1],
        latent=latent,
        sigmas=sigmas,
    )
    _save(w, metadata, "size_metadata", f"Size metadata for {sizes[0]}")


def _size_sheet(
    w: Workflow, model, clip, vae, text: str, side: int, cfg: float, steps: int, **values: str
) -> None:
    positive, negative = encode(w, clip, text)
    w.group("Sheet")
    figure, _, report = w.add(
        "GBX_SizeSheet",
        model=model,
        positive=positive,
        negative=negative,
        vae=vae,
        latent=empty_latent(w, side, 1),
        seed=0,
        steps=steps,
        cfg=cfg,
        **values,
    )
    _save(w, figure, "size_sheet", "Original sizes, stock and gated")
    w.add("PreviewAny", source=report, node_title="Report")


def _guider_grid(
    w: Workflow, model, clip, vae, text: str, side: int, size: int, cfg: float, steps: int
) -> None:
    positive, negative = encode(w, clip, text)
    w.group("Original size")
    sized = _sized(w, model, positive, size)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=2)
    noise = w.add("RandomNoise", noise_seed=7)
    sigmas = w.add("BasicScheduler", model=model, scheduler="normal", steps=steps)
    w.group("Strengths of the metadata")

    def guided(w: Workflow, noise, sigmas, latent, vae, **given: Output) -> Output:
        sampler = w.add("KSamplerSelect", sampler_name=sampler_of(w))
        guider = w.add("GBX_MetadataGuider", **given)
        samples, _ = w.add(
            "SamplerCustomAdvanced",
            noise=noise,
            guider=guider,
            sampler=sampler,
            sigmas=sigmas,
            latent_image=latent,
        )
        return w.add("VAEDecode", samples=samples, vae=vae)

    given = {"noise": noise, "sigmas": sigmas, "latent": latent, "vae": vae}
    given |= {"model": model, "positive": sized, "negative": negative, "cfg": cfg}
    for strength in (0.0, 1.0, 2.0):
        image = w.subgraph(
            f"Generate: strength {strength:g}", guided, **given, metadata_strength=strength
        )
        _save(w, image, f"metadata_strength_{strength:g}", f"Metadata at strength {strength:g}")


def _checkpoint_paddings(w: Workflow, family: str, checkpoint: str, side: int, cfg: float) -> None:
    w.note(
        f"What fills the padding of a short prompt of {family}",
        "**Four fillings** of the empty slots behind the same words: stock, zeros, copies, noisy "
        f"copies ({_PAPER}).",
        f"**{family}** was trained with stock padding, so this is experimental. The paper's gain "
        "comes from training with noisy copies.",
        "**Try** more strength, or a prompt of one word.",
    )
    model, clip, vae = _checkpoint(w, checkpoint)
    _paddings(w, model, clip, vae, "a lighthouse", side, cfg, 20)


def _paddings(w: Workflow, model, clip, vae, text: str, side: int, cfg: float, steps: int) -> None:
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NEGATIVE)
    given, paddings = (
        {"clip": clip, "text": text, "strength": 0.1},
        ("stock", "zeros", "copies", "noisy_copies"),
    )
    w.group("Paddings")
    padded = [w.add("GBX_NoisyReplicatePadding", padding=padding, **given) for padding in paddings]
    w.add("PreviewAny", source=padded[-1][1], node_title="Report")
    positives = {padding: positive for padding, (positive, _) in zip(paddings, padded, strict=True)}
    fixed = {"model": model, "negative": negative, "vae": vae}
    images = generate_each(w, positives, side, 2, **fixed, seed=7, steps=steps, cfg=cfg)
    w.group("Images")
    for padding, image in zip(paddings, images, strict=True):
        _save(w, image, f"padding_{padding}", f"Padding: {padding}")


def _checkpoint_rescale(
    w: Workflow, family: str, checkpoint: str, side: int, times: str, cfg: float
) -> None:
    w.note(
        f"{family} at {times} its size: more noise",
        f"**The same noise** at {side} pixels, with {family}'s own schedule and with its noise "
        f"rescaled for the size ({_PAPER}).",
        "**The figure** shows the noise levels of both. The model gets the true level (mode "
        "sampler_only).",
        "**Try** mode retimed only with a model that was fine-tuned for it.",
    )
    model, clip, vae = _checkpoint(w, checkpoint)
    prompts = encode(w, clip, _PHOTO)
    _rescaled(w, model, prompts, vae, side, times, cfg, 20)


def _rescaled(
    w: Workflow,
    model,
    prompts,
    vae,
    side: int,
    times: str,
    cfg: float,
    steps: int,
    moved=None,
    latent=None,
    before=None,
    **given,
) -> None:
    """The same noise with and without rescaling; `moved` is what is rescaled, if not the model
    itself.

    It begins with `latent`, that of the two images `before`, if not with an empty one; `given` goes
    to the sampler.
    """
    w.group(f"At {side}, {times} the trained size")
    latent = latent or empty_latent(w, side, 1)
    rescaled, _, figure, report, _ = w.add(
        "GBX_ResolutionNoiseRescale", model=moved or model, latent=latent
    )
    images = {"image": before} if before else {}
    for patched, name in ((model, "stock"), (rescaled, "rescaled")):
        images[name] = _sampled(w, patched, *prompts, latent, vae, name, cfg, steps, **given)
    labels = (
        [f"face {number}, {name}" for name in images for number in (1, 2)]
        if before
        else list(images)
    )

    def sheet(w: Workflow, **images: Output) -> Output:
        return labeled(w, list(images.values()), labels, 2, min(max(side, 256), 1024))

    _save(
        w,
        w.subgraph("On one sheet", sheet, **images),
        f"size_{side}",
        f"{side} pixels, stock and rescaled",
    )
    _save(w, figure, f"size_{side}_noise", "Noise before and after")
    w.add("PreviewAny", source=report, node_title="Report")


def _checkpoint_higher(w: Workflow, name: str, file: str, side: int, how: str, cfg: float) -> None:
    w.note(
        f"{name} at twice its size",
        f"**{name}** at {side} pixels, stock and with Higher Resolution: {how}.",
        "**What to look for:** one subject and one horizon, against repeated parts.",
        "**Try** 1536 pixels, or connect the latent to the node, which shifts the noise schedule "
        "too.",
    )
    model, clip, vae = _checkpoint(w, file)
    report = _higher(w, model, encode(w, clip, _PHOTO), vae, side, cfg=cfg, steps=25)
    w.add("PreviewAny", source=report, node_title="Report")


def _higher(w: Workflow, model, prompts, vae, side: int, cfg: float, steps: int) -> Output:
    """The same noise with the stock model and through Higher Resolution; returns the report."""
    w.group(f"At {side} pixels")
    latent = empty_latent(w, side, 1)
    higher, report = w.add("GBX_PositionalResample", model=model)
    for patched, name in ((model, "stock"), (higher, "higher resolution")):
        image = _sampled(w, patched, *prompts, latent, vae, name, cfg, steps)
        _save(w, image, f"higher_{side}_{name.replace(' ', '_')}", f"{side} pixels, {name}")
    return report


def _sized(w: Workflow, model: Output, prompt: Output, size: int) -> Output:
    sized, _ = w.add(
        "GBX_MetadataConditioning",
        model=model,
        conditioning=prompt,
        original_width=size,
        original_height=size,
    )
    return sized


def _sampled(
    w: Workflow,
    model,
    positive,
    negative,
    latent,
    vae,
    what: str,
    cfg: float,
    steps: int,
    **given: float,
) -> Output:
    numbers = {"seed": 7, "steps": steps, "cfg": cfg, **given}
    return generate(
        w, model, positive, negative, latent, vae, what=what, sampler=sampler_of(w), **numbers
    )


def _save(w: Workflow, image: Output, name: str, title: str) -> None:
    w.add("SaveImage", images=image, filename_prefix=f"glassbox/{name}", node_title=title)
