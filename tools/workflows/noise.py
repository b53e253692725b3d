"""The workflows of the noise family: noise that is paired with the images it is added to."""

from .authoring import Output, Workflow
from .front import for_generating, labeled, prepare, shape_of, show
from .sampling import encode, sample, train_lora

_CAPTION = (
    "portrait, light skin, short black hair, majestic beard, sunglasses, white shirt, smiling"
)
_WIDE = 192  # pixels: room for a person at either side
COMPOSED = (
    "portrait, light skin, long black hair, shaven, round glasses, white hoodie, smiling, open eyes"
)
TOWN = "a small town by the sea at dusk, watercolor"
_FOX = "a red fox and a blue owl on a snowy wooden fence, golden hour"
_NEGATIVE = "Negative prompt (empty)"
_FIGURES = "Distances and estimated gain"
_SHOWN = ("batch_size", "steps", "learning_rate", "rank")  # of the settings of a training
_FOLDER = "my_images"  # of the user's own, in ComfyUI's input folder


def demo_noise_immiscible_gain(w: Workflow) -> None:
    w.note(
        "What would assigned noise gain with these images?",
        "**The first figure**: eight faces, each with its distance from its noise, as drawn and "
        "assigned.",
        "**The second figure**: over the number of images, how much nearer their noise comes by "
        "assignment in a batch, from a pool, and by the nearest of four (Immiscible Diffusion, "
        "arXiv 2406.12303).",
        "**The gain is small**: distances in 6,144 dimensions are all similar. Images sampled "
        "from assigned noise look like those from the noise as drawn, so none are shown here; the "
        "gain is in training.",
        "**Try** your own images (Load Image), pairing pool or nearest, and k = 64.",
    )
    w.group("Model and images")
    model, _, vae = w.add("GBX_LoadDemoModel")
    images, _, _ = w.add("GBX_DemoPicture", image_index=0, count=8)
    latent = w.add("VAEEncode", pixels=images, vae=vae)
    w.group("Noise of eight images")
    noise = w.add("RandomNoise", noise_seed=0)
    _, figure, report = _immiscible(w, noise, latent, model, gain_batch_size=8, pool_size=128)
    w.group("Figures")
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/noise_gains",
        node_title=_FIGURES,
    )
    w.add("PreviewAny", source=report, node_title="Report")


def demo_noise_immiscible_stock_ksampler(w: Workflow) -> None:
    w.note(
        "Immiscible noise in a stock KSampler",
        "**Four faces** go to a stock KSampler. Immiscible Noise for KSampler has written into "
        "the latent which noise sample of the seed each of them gets (arXiv 2406.12303), so that "
        "KSampler draws exactly those.",
        "**The third again, alone:** Latent From Batch selects the third face with its noise "
        "number, and a KSampler with the same seed repeats it.",
        "**Try** another pool_index: each face owns 16 of the pool's 64 samples. Pairing assign "
        "swaps only four.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    images, _, _ = w.add("GBX_DemoPicture", image_index=4, count=4)
    latent = w.add("VAEEncode", pixels=images, vae=vae)
    w.group("Caption")
    positive, negative = encode(w, clip, _CAPTION)
    given = {
        "model": model,
        "positive": positive,
        "negative": negative,
        "steps": 12,
        "cfg": 3.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 0.55,
    }
    _stock_ksampler(w, latent, vae, model, given)


def demo_noise_from_scratch(w: Workflow) -> None:
    w.note(
        "Where immiscible noise helps",
        "**Two small networks** learn handwritten digits of 8 x 8 pixels from scratch. They "
        "differ only in the noise: as drawn, or assigned within each batch of 256 (Immiscible "
        "Diffusion, arXiv 2406.12303).",
        "**Samples by two Euler steps**, from the same noise: blurred averages above, clearer "
        "digits below. **The figure**: the distance from the digits over training, and at the end "
        "over sampling steps.",
        "**It helps** small networks with few sampling steps. Nothing was gained by a LoRA.",
        "**Try** sample_steps 1 and 20, or another seed.",
    )
    w.group("Training")
    drawn, assigned, figure, report = w.add("GBX_TrainingFromScratch", seed=0)
    w.add("PreviewAny", source=report, node_title="Report")
    w.group("Side by side")
    w.add(
        "SaveImage",
        images=drawn,
        filename_prefix="glassbox/digits_drawn",
        node_title="Noise as drawn",
    )
    w.add(
        "SaveImage",
        images=assigned,
        filename_prefix="glassbox/digits_assigned",
        node_title="Assigned noise",
    )
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/digits_distances",
        node_title="Distances",
    )


def demo_noise_composition(w: Workflow) -> None:
    w.note(
        "Set the layout with noise",
        "**The guide** shows a person on one side of a wide canvas. **Composition Noise** "
        "reorders the noise so that its low frequencies follow the guide; no value changes (after "
        "arXiv 2406.12303). A stock KSampler at denoise 1 follows, with the same seed.",
        "**The prompt** names neither where the person stands nor the background. Plain noise "
        "leaves both to chance.",
        "**Try** another first_x (0 to 64), strength 1, cutoff 1 or 4. An ancestral sampler adds "
        "noise of its own and loses the layout.",
    )
    w.in_columns = True
    w.group("Two guides and a prompt")

    def guided(
        w: Workflow, ready: dict[str, Output], image_index, first_x, second_x
    ) -> dict[str, Output]:
        person, mask, _ = w.add("GBX_DemoPicture", image_index=image_index, count=1, part="face")
        empty = w.add("EmptyImage", width=_WIDE, height=128, batch_size=1, color=0x6B9EED)
        placed = {
            "destination": empty,
            "source": person,
            "mask": mask,
            "y": 0,
            "resize_source": False,
        }
        first, second = (w.add("ImageCompositeMasked", **placed, x=x) for x in (first_x, second_x))
        guides = w.add("ImageBatch", image1=first, image2=second)
        latent = w.add("EmptyLatentImage", width=_WIDE, height=128, batch_size=2)
        guide = w.add("VAEEncode", pixels=guides, vae=ready["vae"])
        return {"guide": guide, "image": guides, "latent": latent, **for_generating(ready)}

    given = {"image_index": 5, "first_x": 0, "second_x": _WIDE - 128}
    ready = prepare(w, "Guides, model and prompt", guided, COMPOSED, **given)
    w.group("Order the noise")
    noise = {"latent": ready["latent"], "guide": ready.pop("guide"), "model": ready["model"]}
    _, composed, seed, *_ = w.add("GBX_CompositionNoise", **noise, seed=1, strength=0.8, cutoff=2.0)
    w.group("The same seed, before and after")

    def inside(w: Workflow, image, latent, composed, **given: Output) -> Output:
        batches = [image, *(sample(w, latent_image=one, **given) for one in (latent, composed))]
        shown = [
            w.add("ImageFromBatch", image=one, batch_index=number, length=1)
            for number in (0, 1)
            for one in batches
        ]
        return labeled(
            w, shown, ("guide", "plain noise", "noise with the guide's layout") * 2, 3, 384
        )

    given = {**ready, "composed": composed, "seed": seed}
    sheet = w.subgraph("Generate both", inside, **given, steps=16, cfg=3.0)
    show(w, sheet, "composed", "Before and after", shape_of(3, 2, 384, height=256))


def demo_noise_seed_scout(w: Workflow) -> None:
    w.note(
        "Find the best of sixteen seeds early",
        "**Sixteen seeds** run for four steps each. Seed Scout ranks them by how closely their "
        "layout matches a reference; the three best are sampled to the end, from exactly the "
        "noise that was scouted.",
        "**The row above** is a plain batch from the first seed.",
        "**Try** ranking word_coverage: how clearly even the weakest word of the prompt shows in "
        "the attention (after InitNO, arXiv 2404.04650). Captions gained nothing by it here, and "
        "as many complete images did as well as any ranking.",
    )
    w.in_columns = True
    w.group("What is wanted")

    def wanted(w: Workflow, ready: dict[str, Output], image_index: Output) -> dict[str, Output]:
        image, _, _ = w.add("GBX_DemoPicture", image_index=image_index, count=1)
        latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=1)
        text = w.add("PrimitiveStringMultiline", value=ready["prompt"])
        return {
            "clip": ready["clip"],
            "text": text,
            **for_generating(ready),
            "latent": latent,
            "reference": image,
        }

    ready = prepare(w, "Reference, model and prompt", wanted, COMPOSED, image_index=16)
    w.group("Scout")
    given = {**ready, "prompt": ready.pop("text")}
    given.pop("text")
    ready.pop("clip")
    how = {
        "ranking": "layout_likeness",
        "seed": 21,
        "steps": 4,
        "batch_size": 8,
        "keep": 3,
        "cfg": 3.0,
    }
    seeds, *_ = w.add("GBX_SeedScout", **given, **how)
    w.group("To the end")

    def inside(
        w: Workflow, latent: Output, reference: Output, seeds: Output, **given: Output
    ) -> Output:
        first = w.add("RepeatLatentBatch", samples=latent, amount=3)
        batch = sample(w, latent_image=first, seed=21, **given)
        _, best = w.add(
            "GBX_W2WSheet", images=sample(w, latent_image=latent, seed=seeds, **given)
        )  # one for each seed
        found = [f"{one} of 16" for one in ("best", "second best", "third best")]
        labels = [
            "layout wanted",
            *(f"plain batch, {number}" for number in (1, 2, 3)),
            "layout wanted",
            *found,
        ]
        return labeled(w, [reference, batch, reference, best], labels, 4, 256)

    sheet = w.subgraph("Generate first and best", inside, **ready, seeds=seeds, steps=12, cfg=3.0)
    show(w, sheet, "scouted", "First and best seeds", shape_of(4, 2, 256))


def sdxl_noise_seed_scout(w: Workflow) -> None:
    w.note(
        "SDXL: many seeds for a few steps, the best ones to the end",
        "**Sixteen seeds** run for six steps each and are ranked by how closely their layout and "
        "colors match a reference image, the ranking that beat a random seed on the demo model.",
        "**KSampler** gets the list of the three best seeds and runs once for each, from exactly "
        "the scouted noise.",
        "**Try** your own reference and prompt. Ranked by words, seeds gained nothing there, and "
        "as many complete images did as well as any ranking.",
    )
    w.group("Model and prompt")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
    positive, negative = encode(w, clip, _FOX)
    latent = w.add("EmptyLatentImage", width=1024, height=1024, batch_size=1)
    given = {"model": model, "positive": positive, "negative": negative, "cfg": 7.0}
    reference, _ = w.add("LoadImage", image="example.png", node_title="The layout you want")
    w.group("Scouting")
    seeds, _, figure, report, _ = w.add(
        "GBX_SeedScout",
        vae=vae,
        latent=latent,
        reference=reference,
        ranking="layout_likeness",
        seed=21,
        keep=3,
        steps=6,
        **given,
    )
    w.group("The best seeds to the end")
    samples = w.add(
        "KSampler",
        seed=seeds,
        latent_image=latent,
        steps=25,
        sampler_name="euler",
        scheduler="normal",
        **given,
    )
    w.add(
        "SaveImage",
        images=w.add("VAEDecode", samples=samples, vae=vae),
        filename_prefix="glassbox/best_seeds",
    )
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/scout",
        node_title="Ranked by layout",
    )
    w.add("PreviewAny", source=report, node_title="Report")


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
        "Two LoRAs trained and compared",
        "**Sixteen faces in inverted colors** and one caption train two small LoRAs that differ "
        "only in the noise: as drawn, and from a pool over the training set (Immiscible "
        "Diffusion, arXiv 2406.12303). Four more faces are held out.",
        "**The images** show one seed before and after training, **Compare Training Runs** both "
        "held-out losses.",
        "**Paired noise lowers the training loss by itself**, so only held-out losses and images "
        "can be compared; studies/noise does that over five seeds.",
        "**Open** a Train node for its losses while it trains, Finish now, and every setting. "
        "**Try** clip and captions connected (the text encoder too), a checkpoint name.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    faces, _, _ = w.add("GBX_DemoPicture", image_index=0, count=20)
    latent = w.add("VAEEncode", pixels=w.add("ImageInvert", image=faces), vae=vae)
    positive, negative = encode(w, clip, "portrait")
    short = {
        "steps": 32,
        "batch_size": 4,
        "learning_rate": 0.003,
        "lr_schedule": "cosine",
        "rank": 8,
        "weighting": "min_snr",
        "held_out": 4,
        "validation_interval": 8,
        "sample_interval": 32,
        "sample_steps": 8,
        "lora_precision": "fp32",
        "gradient_checkpointing": False,
    }
    _side_by_side(w, model, vae, latent, positive, negative, short)


def sd15_noise_train_lora(w: Workflow) -> None:
    _train_on_folder(w, "v1-5-pruned-emaonly-fp16.safetensors", 512)


def sdxl_noise_train_lora(w: Workflow) -> None:
    _train_on_folder(w, "sd_xl_base_1.0.safetensors", 1024)


def _immiscible(
    w: Workflow, noise: Output, latent: Output, model: Output, **estimate: int
) -> tuple[Output, Output, Output]:
    """The noise of Immiscible Noise, its figures and report."""
    paired, _, report, figure = w.add(
        "GBX_ImmiscibleNoise", noise=noise, latent=latent, model=model, **estimate
    )
    return paired, figure, report


def _with_noise(
    w: Workflow, model: Output, positive: Output, negative: Output, vae: Output, **given: Output
) -> Output:
    """Images of SamplerCustomAdvanced."""
    guider = w.add(
        "CFGGuider", model=model, positive=positive, negative=negative, cfg=given.pop("cfg")
    )
    schedule = {name: given.pop(name) for name in ("steps", "denoise")}
    samples, _ = w.add(
        "SamplerCustomAdvanced",
        guider=guider,
        sampler=w.add("KSamplerSelect", sampler_name="euler"),
        sigmas=w.add("BasicScheduler", model=model, scheduler="normal", **schedule),
        **given,
    )
    return w.add("VAEDecode", samples=samples, vae=vae)


def _first_pass(w: Workflow, checkpoint: str, size: int) -> tuple[Output, Output, dict]:
    """A batch of four from a caption: its latent, the VAE, and what a KSampler for the second pass
    is given.
    """
    w.group("Model and caption")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    positive, negative = encode(w, clip, TOWN)
    w.group("First pass")
    empty = w.add("EmptyLatentImage", width=size, height=size, batch_size=4)
    given = {
        "model": model,
        "positive": positive,
        "negative": negative,
        "steps": 20,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
    }
    latent = w.add("KSampler", latent_image=empty, seed=1, **given)
    return latent, vae, {**given, "denoise": 0.55}


def _second_pass(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "A second pass with assigned noise",
        "**Four images** are generated, noised halfway and sampled again. The noise of the second "
        "pass is assigned to the nearest images (Immiscible Diffusion, arXiv 2406.12303).",
        "**The figures** show each image's distance from its noise, and what larger batches, a "
        "pool or the nearest of four would gain: about 0.3 % of the distance for four images.",
        "**Try** your own images instead of the first pass: Load Image and VAE Encode give the "
        "latent.",
    )
    latent, vae, given = _first_pass(w, checkpoint, size)
    model = given["model"]
    w.group("Noise")
    noise = w.add("RandomNoise", noise_seed=11)
    paired, figure, report = _immiscible(w, noise, latent, model, gain_batch_size=4, pool_size=64)
    w.group("Second pass")
    fixed = {name: given[name] for name in ("model", "positive", "negative")}
    numbers = {name: given[name] for name in ("steps", "cfg", "denoise")}
    latents = {"noise": paired, "latent_image": latent, "vae": vae}
    image = w.subgraph("Sample with this noise", _with_noise, **fixed, **latents, **numbers)
    w.group("Images and figures")
    w.add("SaveImage", images=image, filename_prefix="glassbox/noise_paired")
    w.add("PreviewImage", images=figure, node_title=_FIGURES)
    w.add("PreviewAny", source=report, node_title="Report")


def _second_ksampler(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "Immiscible noise in a stock KSampler",
        "**Four images** of a first pass go to a stock KSampler. Immiscible Noise for KSampler "
        "has written into the latent which noise sample of the seed each of them gets (arXiv "
        "2406.12303).",
        "**The third again, alone:** Latent From Batch selects the third image with its noise "
        "number, and a KSampler with the same seed repeats it.",
        "**Try** another pool_index: each image owns 16 of the pool's 64 samples. Pairing assign "
        "swaps only four.",
    )
    latent, vae, given = _first_pass(w, checkpoint, size)
    _stock_ksampler(w, latent, vae, given["model"], given)


def _stock_ksampler(w: Workflow, latent: Output, vae: Output, model: Output, given: dict) -> None:
    """The batch through a KSampler with its assigned noise, and its third image again alone."""
    w.group("Noise")
    batch, seed, _, report, figure = w.add(
        "GBX_ImmiscibleLatentBatch",
        latent=latent,
        model=model,
        seed=11,
        pairing="pool",
        pool_size=64,
    )
    w.group("The batch")
    images = w.add(
        "VAEDecode", samples=w.add("KSampler", latent_image=batch, seed=seed, **given), vae=vae
    )
    w.add("SaveImage", images=images, filename_prefix="glassbox/noise_batch")
    w.group("The third again, alone")
    third = w.add("LatentFromBatch", samples=batch, batch_index=2, length=1)
    image = w.add(
        "VAEDecode", samples=w.add("KSampler", latent_image=third, seed=seed, **given), vae=vae
    )
    w.add("SaveImage", images=image, filename_prefix="glassbox/noise_third")
    w.group("Distances")
    w.add("PreviewImage", images=figure)
    w.add("PreviewAny", source=report, node_title="Report")


def _train_on_folder(w: Workflow, checkpoint: str, size: int) -> None:
    w.note(
        "A LoRA trained with noise as drawn and with immiscible noise",
        "**A folder of images** in ComfyUI's input folder, each with its caption in a .txt file "
        "of the same name, trains two LoRAs that differ only in the noise: as drawn, and from "
        "pools over the training set (Immiscible Diffusion, arXiv 2406.12303).",
        "**Choose your folder** in Load Image and Text Dataset from Folder. The last two images "
        "are held out: raise held_out with more.",
        "**Paired noise lowers the training loss by itself**: compare the orange lines and the "
        "images.",
        "**Both runs keep checkpoints** in output/glassbox: queue again after a stop, and they "
        "resume. Open Train a LoRA for its losses while it trains, Finish now, and every setting.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=checkpoint)
    images, texts = w.add("LoadImageTextDataSetFromFolder", folder=_FOLDER)
    resized, _, _ = w.add("GBX_ResizeToBuckets", images=images, resolution=size)
    latents, captions = w.add(
        "MakeTrainingDataset", images=resized, vae=vae, clip=clip, texts=texts
    )
    negative = w.add("CLIPTextEncode", clip=clip, text="", node_title=_NEGATIVE)
    given = {
        "steps": 500,
        "batch_size": 1,
        "learning_rate": 0.0002,
        "lr_schedule": "cosine",
        "warmup_steps": 25,
        "weighting": "min_snr",
        "rank": 16,
        "held_out": 2,
        "validation_interval": 50,
        "sample_interval": 100,
        "sample_steps": 20,
        "sample_cfg": 7.0,
        "lora_precision": "fp32",
    }
    _side_by_side(w, model, vae, latents, captions, negative, given)


def _side_by_side(
    w: Workflow,
    model: Output,
    vae: Output,
    latents: Output,
    positive: Output,
    negative: Output,
    given: dict,
) -> None:
    """Two trainings that differ only in the noise, their plots and samples."""
    shown = {}
    for mode, title in (("off", "Noise as drawn"), ("pool", "Immiscible noise")):
        w.group(title)
        kind = w.name.partition("_")[0]
        losses, _, samples, report = train_lora(
            w,
            {name: value for name, value in given.items() if name not in _SHOWN},
            f"Train: {title.lower()}",
            model=model,
            latents=latents,
            positive=positive,
            vae=vae,
            sample_negative=negative,
            pairing=mode,
            **{name: given[name] for name in _SHOWN},
            seed=1,
            checkpoint_name="" if kind == "demo" else f"glassbox/{kind}_training_{mode}",
            prefix=f"loras/glassbox_{mode}",
        )
        w.add("PreviewAny", source=report, node_title="Report")
        shown[mode] = (losses, samples)
    w.group("Side by side")
    figure, report = w.add(
        "GBX_CompareTrainingRuns",
        loss_map_a=shown["off"][0],
        loss_map_b=shown["pool"][0],
        name_a="noise as drawn",
        name_b="immiscible noise",
    )
    w.add("PreviewAny", source=report, node_title="Comparison")
    w.add(
        "SaveImage",
        images=figure,
        filename_prefix="glassbox/train_losses",
        node_title="Losses of both",
    )
    for mode, title in (("pool", "Immiscible noise"), ("off", "Noise as drawn")):
        samples = shown[mode][1]
        w.add(
            "SaveImage",
            images=samples,
            filename_prefix=f"glassbox/train_{mode}",
            node_title=f"{title}: before, after",
        )
