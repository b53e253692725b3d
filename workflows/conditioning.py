"""The workflows of the conditioning family: size metadata, its gate and its strength, padding, and larger pictures."""

from __future__ import annotations

from .authoring import Output, Workflow

_PAPER = "arXiv 2411.03177"
_FACE = "portrait, light skin, long red hair, sunglasses, smiling, blue hoodie, striped green background"
_SHORT = "portrait, light skin, black afro, sunglasses"
_PHOTO = "a photo of a lighthouse on a cliff, evening light"
_NOTHING = "Nothing (what CFG steers away from)"
_SD15, _SDXL = "v1-5-pruned-emaonly-fp16.safetensors", "sd_xl_base_1.0.safetensors"
_SD3, _FLUX = "sd3.5_medium_incl_clips.safetensors", "flux1-dev-fp8.safetensors"


def demo_conditioning_size_sweep(w: Workflow) -> None:
    w.note(
        "Ask for another size, get the same picture",
        f"**Three original sizes** are asked for with the same noise: 32 (blurred), 64, 128 ({_PAPER}).",
        "**First row: stock.** The size is told at every step. **Second row: gated.** It is told late, when the "
        "content is settled; the figure shows when.",
        "**Try** exponent 8 (later), mode value, or the constant curve, which is the stock row again.",
    )
    model, clip, vae = _demo(w)
    _size_sweep(w, model, clip, vae, _FACE, 128, (32, 64, 128), cfg=3.0, steps=20)


def sdxl_conditioning_size_sweep(w: Workflow) -> None:
    w.note(
        "Ask SDXL for another size, get the same picture",
        f"**Three original sizes** are asked for with the same noise: 256, 512, 1024 ({_PAPER}).",
        "**First row: stock.** The size is told at every step. **Second row: gated.** It is told late. The gate is not "
        "what SDXL was trained with.",
        "**Try** exponent 8 (later), mode value, or the constant curve, which is the stock row again.",
    )
    model, clip, vae = _checkpoint(w, _SDXL)
    _size_sweep(w, model, clip, vae, _PHOTO, 1024, (256, 512, 1024), cfg=7.0, steps=25)


def demo_conditioning_guider_grid(w: Workflow) -> None:
    w.note(
        "How strongly the metadata guides",
        f"**An original size of 48** is asked for, with the metadata's own strength β at 0, 1 and 2 ({_PAPER}).",
        "**At 0** it is as if the full size were asked for, **at 1** as in KSampler, **at 2** exaggerated. The text's "
        "strength is the same in all.",
        "**Try** a crop instead of a size, or fields 'all' with mirror.",
    )
    model, clip, vae = _demo(w)
    _guider_grid(w, model, clip, vae, _FACE, 128, 48, cfg=3.0, steps=20)


def sdxl_conditioning_guider_grid(w: Workflow) -> None:
    w.note(
        "How strongly the metadata guides SDXL",
        f"**An original size of 384** is asked for, with the metadata's own strength β at 0, 1 and 2 ({_PAPER}).",
        "**At 0** it is as if the full size were asked for, **at 1** as in KSampler, **at 2** exaggerated.",
        "**Try** a crop instead of a size: it moves the subject.",
    )
    model, clip, vae = _checkpoint(w, _SDXL)
    _guider_grid(w, model, clip, vae, _PHOTO, 1024, 384, cfg=7.0, steps=25)


def demo_conditioning_replicate_padding(w: Workflow) -> None:
    w.note(
        "What stands behind a short prompt",
        f"**Four fillings** of the empty slots behind the same words: stock, zeros, copies, noisy copies ({_PAPER}).",
        "**The demo model** was trained with stock padding, so the others are strange to it. The paper's gain comes "
        "from training with noisy copies.",
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
        f"**The demo model** knows 128 pixels. Here it paints 192 and 256, as it comes and with its noise rescaled by "
        f"1.5 and 2 ({_PAPER}).",
        "**What to look for:** heads and grounds that hang together, against pieces side by side. No rescale makes a "
        "model see more at once than it was trained to.",
        "**Try** mode retimed, which tells the model less noise than there is.",
    )
    model, clip, vae = _demo(w)
    prompts = _prompts(w, clip, _FACE)
    for number, side in ((1.5, 192), (2, 256)):
        _rescaled(w, model, prompts, vae, side, f"{number:g} times", cfg=3.0, steps=20)


def sd15_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "SD1.5", _SD15, 768, "1.5 times", 7.0)


def sdxl_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "SDXL", _SDXL, 1536, "1.5 times", 7.0)


def flux_conditioning_resolution_rescale(w: Workflow) -> None:
    _checkpoint_rescale(w, "Flux", _FLUX, 2048, "2 times", 1.0)


def sd3_conditioning_larger_pictures(w: Workflow) -> None:
    w.note(
        "SD3 beyond its size: positions and noise",
        f"**Positions** are sampled more finely inside the trained range instead of stepping past it, **noise** is "
        f"rescaled for the size ({_PAPER}).",
        "**Two pictures** of the same noise, as the model comes and with both.",
        "**Try** each alone, another alignment, or the base size that your SD3.5 was trained at.",
    )
    model, clip, vae = _checkpoint(w, _SD3)
    prompts = _prompts(w, clip, _PHOTO)
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


def _prompts(w: Workflow, clip: Output, text: str) -> tuple[Output, Output]:
    positive = w.add("CLIPTextEncode", clip=clip, text=text, node_title="Caption")
    return positive, w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)


def _size_sweep(w: Workflow, model, clip, vae, text: str, side: int, sizes: tuple, cfg: float, steps: int) -> None:
    prompts = _prompts(w, clip, text)
    w.group("Gate")
    sigmas = w.add("BasicScheduler", model=model, scheduler="normal", steps=steps)
    gated, figure, _ = w.add("GBX_MetadataSchedule", model=model, sigmas=sigmas)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=2)
    w.group("Sizes asked for")
    told = [[_told(w, model, prompt, size) for prompt in prompts] for size in sizes]
    for patched, name in ((model, "Stock"), (gated, "Gated")):
        w.group(name)
        pictures = [_painted(w, patched, *pair, latent, vae, cfg, steps) for pair in told]
        _save(w, _row(w, pictures), f"size_sweep_{name.lower()}", f"{name}: {', '.join(map(str, sizes))}")
    w.group("What is told")
    _save(w, figure, "size_gate", "The gate")
    picture, report = w.add("GBX_MetadataReport", model=gated, positive=told[0][0], negative=told[0][1],
                            latent_image=latent, sigmas=sigmas)  # fmt: skip
    _save(w, picture, "size_told", f"What is told for {sizes[0]}")
    w.add("PreviewAny", source=report, node_title="In words")


def _guider_grid(w: Workflow, model, clip, vae, text: str, side: int, size: int, cfg: float, steps: int) -> None:
    positive, negative = _prompts(w, clip, text)
    w.group("Asked for")
    asked = _told(w, model, positive, size)
    latent = w.add("EmptyLatentImage", width=side, height=side, batch_size=2)
    noise = w.add("RandomNoise", noise_seed=7)
    sampler = w.add("KSamplerSelect", sampler_name="euler")
    sigmas = w.add("BasicScheduler", model=model, scheduler="normal", steps=steps)
    for strength in (0.0, 1.0, 2.0):
        w.group(f"Strength {strength:g}")
        guider = w.add("GBX_MetadataGuider", model=model, positive=asked, negative=negative, cfg=cfg,
                       metadata_strength=strength)  # fmt: skip
        samples, _ = w.add("SamplerCustomAdvanced", noise=noise, guider=guider, sampler=sampler, sigmas=sigmas,
                           latent_image=latent)  # fmt: skip
        image = w.add("VAEDecode", samples=samples, vae=vae)
        _save(w, image, f"metadata_strength_{strength:g}", f"Metadata at strength {strength:g}")


def _checkpoint_paddings(w: Workflow, family: str, checkpoint: str, side: int, cfg: float) -> None:
    w.note(
        f"What stands behind a short prompt of {family}",
        f"**Four fillings** of the empty slots behind the same words: stock, zeros, copies, noisy copies ({_PAPER}).",
        f"**{family}** was trained with stock padding, so this is an experiment. The paper's gain comes from training "
        "with noisy copies.",
        "**Try** more strength, or a prompt of one word.",
    )
    model, clip, vae = _checkpoint(w, checkpoint)
    _paddings(w, model, clip, vae, "a lighthouse", side, cfg, 20)


def _paddings(w: Workflow, model, clip, vae, text: str, side: int, cfg: float, steps: int) -> None:
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    latent = _latent(w, side, 2)
    for padding in ("stock", "zeros", "copies", "noisy copies"):
        w.group(padding.capitalize())
        positive, report = w.add("GBX_NoisyReplicatePadding", clip=clip, text=text, padding=padding, strength=0.1)
        image = _painted(w, model, positive, negative, latent, vae, cfg, steps)
        _save(w, image, f"padding_{padding.replace(' ', '_')}", f"Padding: {padding}")
    w.add("PreviewAny", source=report, node_title="In words")


def _checkpoint_rescale(w: Workflow, family: str, checkpoint: str, side: int, times: str, cfg: float) -> None:
    w.note(
        f"{family} at {times} its size: more noise",
        f"**The same noise** at {side} pixels, with {family}'s own schedule and with its noise rescaled for the size "
        f"({_PAPER}).",
        "**The figure** shows the noise levels of both. The model is told the true level (mode sampler only).",
        "**Try** mode retimed only with a model that was fine-tuned for it.",
    )
    model, clip, vae = _checkpoint(w, checkpoint)
    prompts = _prompts(w, clip, _PHOTO)
    _rescaled(w, model, prompts, vae, side, times, cfg, 20)


def _rescaled(w: Workflow, model, prompts, vae, side: int, times: str, cfg: float, steps: int, moved=None) -> None:
    """The same noise with and without rescaling; `moved` is what is rescaled, if not the model itself."""
    w.group(f"At {side}, {times} the trained size")
    latent = _latent(w, side, 1)
    rescaled, _, figure, report = w.add("GBX_ResolutionNoiseRescale", model=moved or model, latent_image=latent)
    for patched, name in ((model, "as it comes"), (rescaled, "rescaled")):
        image = _painted(w, patched, *prompts, latent, vae, cfg, steps)
        _save(w, image, f"size_{side}_{name.replace(' ', '_')}", f"{side} pixels, {name}")
    _save(w, figure, f"size_{side}_noise", "Noise before and after")
    w.add("PreviewAny", source=report, node_title="In words")


def _latent(w: Workflow, side: int, count: int) -> Output:
    kind = "EmptySD3LatentImage" if w.name.startswith(("flux", "sd3")) else "EmptyLatentImage"
    return w.add(kind, width=side, height=side, batch_size=count)


def _told(w: Workflow, model: Output, prompt: Output, size: int) -> Output:
    told, _ = w.add("GBX_MetadataConditioning", model=model, conditioning=prompt, width=size, height=size,
                    node_title=f"Original size {size}")  # fmt: skip
    return told


def _painted(w: Workflow, model, positive, negative, latent, vae, cfg: float, steps: int) -> Output:
    samples = w.add("KSampler", model=model, positive=positive, negative=negative, latent_image=latent, seed=7,
                    steps=steps, cfg=cfg, sampler_name="euler", scheduler="normal")  # fmt: skip
    return w.add("VAEDecode", samples=samples, vae=vae)


def _row(w: Workflow, pictures: list[Output]) -> Output:
    first, *others = pictures
    for picture in others:
        first = w.add("ImageBatch", image1=first, image2=picture)
    return first


def _save(w: Workflow, image: Output, name: str, title: str) -> None:
    w.add("SaveImage", images=image, filename_prefix=f"glassbox/{name}", node_title=title)
