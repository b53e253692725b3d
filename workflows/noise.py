"""The workflows of the noise family: noise that is paired with the pictures it is added to."""

from .authoring import Output, Workflow

_CAPTION = "portrait, light skin, majestic beard, black hair, sunglasses, white shirt, plain blue background"
_TOWN = "a small town by the sea at dusk, watercolour"
_NOTHING = "Nothing (what CFG steers away from)"
_FOLDER = "my_pictures"  # of the user's own, in ComfyUI's input folder


def demo_noise_immiscible_picture_to_picture(w: Workflow) -> None:
    w.note(
        "Picture to picture with the noise that lies nearest",
        "**Eight faces** are put half into noise and painted on: once each with the noise drawn in its place, once "
        "with the same eight noises dealt out so that they lie nearest (Immiscible Diffusion, arXiv 2406.12303).",
        "**The first figure** shows each face's distance from its noise, before and after; **the second** what larger "
        "batches, a pool, or the nearest of four noises would gain. The gain is small: distances in 2,048 dimensions "
        "are all alike.",
        "**Try** mode pool or nearest, a k of 64, or mode off, which gives the very pictures of the row above.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    pictures, _, _ = w.add("GBX_DemoPicture", picture=0, count=8)
    latent = w.add("VAEEncode", pixels=pictures, vae=vae)
    w.group("Noise")
    noise = w.add("RandomNoise", noise_seed=11)
    paired = _immiscible(w, noise, latent, model)
    gains, *_ = w.add("GBX_NoiseGainPreview", samples=latent, model=model, batch_size=8, pool_size=128, seed=1)
    w.group("Caption")
    positive = w.add("CLIPTextEncode", clip=clip, text=_CAPTION, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    w.group("Painting on")
    painting = _Painting(w, model, positive, negative, cfg=3.0, steps=12, denoise=0.55)
    drawn = w.add("VAEDecode", samples=painting.samples(noise, latent), vae=vae)
    nearer = w.add("VAEDecode", samples=painting.samples(paired.noise, latent), vae=vae)
    w.group("Side by side")
    w.add("SaveImage", images=nearer, filename_prefix="glassbox/noise_paired", node_title="Noise paired")
    w.add("SaveImage", images=drawn, filename_prefix="glassbox/noise_drawn", node_title="Noise as drawn")
    w.add("SaveImage", images=paired.figure, filename_prefix="glassbox/noise_distances", node_title="What was gained")
    w.add("SaveImage", images=gains, filename_prefix="glassbox/noise_gains", node_title="What could be gained")
    w.add("PreviewAny", source=paired.report, node_title="In words")


def demo_noise_immiscible_stock_ksampler(w: Workflow) -> None:
    w.note(
        "Immiscible noise in a stock KSampler",
        "**Four faces** go to an ordinary KSampler. Immiscible Latent Batch has written into the latent which noise of "
        "the seed each of them gets (arXiv 2406.12303), so that KSampler draws just those.",
        "**Again, alone:** Latent From Batch cuts out the third face with its noise number, and a KSampler with the "
        "same seed paints it as in the batch.",
        "**Try** another turn: each face owns 16 of the pool's 64 noises. Mode assign swaps the four noises only.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    pictures, _, _ = w.add("GBX_DemoPicture", picture=4, count=4)
    latent = w.add("VAEEncode", pixels=pictures, vae=vae)
    w.group("Caption")
    positive = w.add("CLIPTextEncode", clip=clip, text=_CAPTION, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    given = {"model": model, "positive": positive, "negative": negative, "steps": 12, "cfg": 3.0,
             "sampler_name": "euler", "scheduler": "normal", "denoise": 0.55}  # fmt: skip
    _stock_ksampler(w, latent, vae, model, given)


def sd15_noise_immiscible_second_pass(w: Workflow) -> None:
    _second_pass(w, "v1-5-pruned-emaonly-fp16.safetensors", 512)


def sdxl_noise_immiscible_second_pass(w: Workflow) -> None:
    _second_pass(w, "sd_xl_base_1.0.safetensors", 1024)


def sd15_noise_immiscible_stock_ksampler(w: Workflow) -> None:
    _second_ksampler(w, "v1-5-pruned-emaonly-fp16.safetensors", 512)


def sdxl_noise_immiscible_stock_ksampler(w: Workflow) -> None:
    _second_ksampler(w, "sd_xl_base_1.0.safetensors", 1024)


def demo_noise_train_lora(w: Workflow) -> None:
    w.note(
        "A LoRA trained with noise as drawn and with immiscible noise",
        "**Sixteen faces** and one caption train two small LoRAs that differ in nothing but the noise: as drawn, and "
        "from a pool over the training set (Immiscible Diffusion, arXiv 2406.12303). Four more faces are held out.",
        "**The plots** show training and held-out loss, **the pictures** one noise before, on the way and after.",
        "**Paired noise lowers the training loss by itself**: compare the orange lines and the pictures. So short a "
        "run on so few pictures shows how it works, not which is better; studies/noise measures that.",
        "**Try** mode nearest, grouping, more steps, a checkpoint name; press Stop while it trains.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    pictures, _, _ = w.add("GBX_DemoPicture", picture=0, count=20)
    latent = w.add("VAEEncode", pixels=pictures, vae=vae)
    positive = w.add("CLIPTextEncode", clip=clip, text="portrait", node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    short = {"steps": 16, "batch_size": 4, "learning_rate": 0.001, "weighting": "min-SNR", "held_out": 4,
             "validate_every": 4, "sample_every": 8, "sample_steps": 8, "training_dtype": "fp32",
             "lora_dtype": "fp32", "gradient_checkpointing": False}  # fmt: skip
    _side_by_side(w, model, vae, latent, positive, negative, short)


def sd15_noise_train_lora(w: Workflow) -> None:
    _train_on_folder(w, "v1-5-pruned-emaonly-fp16.safetensors", 512)


def sdxl_noise_train_lora(w: Workflow) -> None:
    _train_on_folder(w, "sd_xl_base_1.0.safetensors", 1024)


class _Immiscible:
    """The outputs of Immiscible Noise that a workflow shows."""

    def __init__(self, outputs: tuple[Output, ...]):
        self.noise, _, self.report, self.figure = outputs


class _Painting:
    """SamplerCustomAdvanced with everything but its noise and latent."""

    def __init__(self, w: Workflow, model: Output, positive: Output, negative: Output, **how):
        self._w = w
        self._guider = w.add("CFGGuider", model=model, positive=positive, negative=negative, cfg=how["cfg"])
        self._sampler = w.add("KSamplerSelect", sampler_name="euler")
        self._sigmas = w.add(
            "BasicScheduler", model=model, scheduler="normal", steps=how["steps"], denoise=how["denoise"]
        )

    def samples(self, noise: Output, latent: Output) -> Output:
        """The painted latents."""
        samples, _ = self._w.add("SamplerCustomAdvanced", noise=noise, guider=self._guider, sampler=self._sampler,
                                 sigmas=self._sigmas, latent_image=latent)  # fmt: skip
        return samples


def _immiscible(w: Workflow, noise: Output, latent: Output, model: Output) -> _Immiscible:
    return _Immiscible(w.add("GBX_ImmiscibleNoise", noise=noise, latent_image=latent, model=model))


def _first_pass(w: Workflow, checkpoint: str, size: int) -> tuple[Output, Output, dict]:
    """A batch of four from a caption: its latent, the VAE, and what a KSampler for the second pass is given."""
    w.group("Model and caption")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    positive = w.add("CLIPTextEncode", clip=clip, text=_TOWN, node_title="Caption")
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    w.group("First pass")
    empty = w.add("EmptyLatentImage", width=size, height=size, batch_size=4)
    given = {"model": model, "positive": positive, "negative": negative, "steps": 20, "cfg": 7.0,
             "sampler_name": "euler", "scheduler": "normal"}  # fmt: skip
    latent = w.add("KSampler", latent_image=empty, seed=1, **given)
    return latent, vae, {**given, "denoise": 0.55}


def _second_pass(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "A second pass with the noise that lies nearest",
        "**Four pictures** are painted, put half into noise and painted on. The noises of the second pass are dealt "
        "out so that each lies nearest to its picture (Immiscible Diffusion, arXiv 2406.12303).",
        "**The figures** show each picture's distance from its noise, and what larger batches, a pool or the nearest "
        "of four would gain: about 0.3 % of the distance for four pictures.",
        "**Try** your own pictures instead of the first pass: Load Image and VAE Encode give the latent.",
    )
    latent, vae, given = _first_pass(w, checkpoint, size)
    model = given["model"]
    w.group("Noise")
    noise = w.add("RandomNoise", noise_seed=11)
    paired = _immiscible(w, noise, latent, model)
    gains, *_ = w.add("GBX_NoiseGainPreview", samples=latent, model=model, batch_size=4, pool_size=64, seed=1)
    w.group("Second pass")
    painting = _Painting(w, model, given["positive"], given["negative"], cfg=7.0, steps=20, denoise=0.55)
    image = w.add("VAEDecode", samples=painting.samples(paired.noise, latent), vae=vae)
    w.group("Pictures and figures")
    w.add("SaveImage", images=image, filename_prefix="glassbox/noise_paired")
    w.add("PreviewImage", images=paired.figure, node_title="What was gained")
    w.add("PreviewImage", images=gains, node_title="What could be gained")
    w.add("PreviewAny", source=paired.report, node_title="In words")


def _second_ksampler(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "Immiscible noise in a stock KSampler",
        "**Four pictures** of a first pass go to an ordinary KSampler. Immiscible Latent Batch has written into the "
        "latent which noise of the seed each of them gets (arXiv 2406.12303).",
        "**Again, alone:** Latent From Batch cuts out the third picture with its noise number, and a KSampler with the "
        "same seed paints it as in the batch.",
        "**Try** another turn: each picture owns 16 of the pool's 64 noises. Mode assign swaps the four noises only.",
    )
    latent, vae, given = _first_pass(w, checkpoint, size)
    _stock_ksampler(w, latent, vae, given["model"], given)


def _stock_ksampler(w: Workflow, latent: Output, vae: Output, model: Output, given: dict) -> None:
    """The batch through a KSampler with its assigned noise, and its third picture again alone."""
    w.group("Noise")
    batch, seed, _, report, figure = w.add(
        "GBX_ImmiscibleLatentBatch", samples=latent, model=model, seed=11, mode="pool", pool_size=64
    )
    w.group("The batch")
    images = w.add("VAEDecode", samples=w.add("KSampler", latent_image=batch, seed=seed, **given), vae=vae)
    w.add("SaveImage", images=images, filename_prefix="glassbox/noise_batch")
    w.group("The third again, alone")
    third = w.add("LatentFromBatch", samples=batch, batch_index=2, length=1)
    image = w.add("VAEDecode", samples=w.add("KSampler", latent_image=third, seed=seed, **given), vae=vae)
    w.add("SaveImage", images=image, filename_prefix="glassbox/noise_third")
    w.group("What was gained")
    w.add("PreviewImage", images=figure)
    w.add("PreviewAny", source=report, node_title="In words")


def _train_on_folder(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "A LoRA trained with noise as drawn and with immiscible noise",
        "**A folder of pictures** in ComfyUI's input folder, each with its caption in a .txt file of the same name, "
        "trains two LoRAs that differ in nothing but the noise: as drawn, and from pools over the training set "
        "(Immiscible Diffusion, arXiv 2406.12303).",
        "**Choose your folder** in the first node. The last two pictures are held out: raise held_out with more.",
        "**Paired noise lowers the training loss by itself**: compare the orange lines and the pictures.",
        "**Both runs keep checkpoints** in output/glassbox: queue again after a stop, and they go on.",
    )
    w.group("Model and pictures")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    images, texts = w.add("LoadImageTextDataSetFromFolder", folder=_FOLDER)
    resized = w.add("ResizeImagesByShorterEdge", images=images, shorter_edge=size)
    cropped = w.add("CenterCropImages", images=resized, width=size, height=size)
    latents, captions = w.add("MakeTrainingDataset", images=cropped, vae=vae, clip=clip, texts=texts)
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NOTHING)
    given = {"steps": 500, "batch_size": 1, "learning_rate": 0.0002, "schedule": "cosine", "warmup_steps": 25,
             "weighting": "min-SNR", "rank": 16, "held_out": 2, "validate_every": 50, "sample_every": 100,
             "sample_steps": 20, "sample_cfg": 7.0, "lora_dtype": "fp32"}  # fmt: skip
    _side_by_side(w, model, vae, latents, captions, negative, given)


def _side_by_side(
    w: Workflow, model: Output, vae: Output, latents: Output, positive: Output, negative: Output, given: dict
) -> None:
    """Two trainings with everything the same but the noise, their plots and samples."""
    shown = {}
    for mode, title in (("off", "Noise as drawn"), ("pool", "Immiscible noise")):
        w.group(title)
        kind = w.name.partition("_")[0]
        _, lora, _, steps, plot, samples, report = w.add(
            "GBX_TrainLoraImmiscible", model=model, latents=latents, positive=positive, vae=vae,
            sample_negative=negative, mode=mode, seed=1, node_title=title,
            checkpoint="" if kind == "demo" else f"glassbox/{kind}_training_{mode}", **given,
        )  # fmt: skip
        w.add("SaveLoRA", lora=lora, prefix=f"loras/glassbox_{mode}", steps=steps)
        w.add("PreviewAny", source=report, node_title="In words")
        shown[mode] = (plot, samples)
    w.group("Side by side")
    for mode, title in (("pool", "Immiscible noise"), ("off", "Noise as drawn")):
        plot, samples = shown[mode]
        w.add("SaveImage", images=samples, filename_prefix=f"glassbox/train_{mode}", node_title=f"Samples: {title}")
        w.add("SaveImage", images=plot, filename_prefix=f"glassbox/loss_{mode}", node_title=f"Loss: {title}")
