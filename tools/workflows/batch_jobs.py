"""Workflows that are made for `run.py batch`: a population of LoRAs, images of its members to
label, and the quality of activations over a folder of images.

Other jobs are workflows of their families: scanning a list, localizing and auditing.
"""

from .activation_parts import measure_quality
from .authoring import Output, Workflow
from .sampling import encode, sampler_of, train_lora

_CAPTION = "portrait"
_PAPER = "weights2weights, arXiv 2406.09413"
_SD15 = "v1-5-pruned-emaonly-fp16.safetensors"


def demo_batch_train_population(w: Workflow) -> None:
    w.note(
        "Train a population of LoRAs",
        f"**One LoRA per identity** ({_PAPER}): here a few steps on one face. Run it over a list "
        "of images and join the LoRAs to a space.",
        "`python run.py batch workflows/further/demo_batch_train_population.json --over 0-23`: the "
        "LoRAs, their labels and the space of them lie in .cache/batch.",
        "**Try** more steps, and another rank.",
    )
    w.group("Model and image")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    images, _, _ = w.add("GBX_DemoPicture", image_index=0, count=2)
    positive = w.add("CLIPTextEncode", clip=clip, text=_CAPTION, node_title="Caption")
    _train(w, model, w.add("VAEEncode", pixels=images, vae=vae), positive, 8, 1)
    w.batch("GBX_DemoPicture.image_index", join=("space",))


def sd15_batch_train_population(w: Workflow) -> None:
    w.note(
        "Train a population of LoRAs",
        f"**One LoRA per identity** ({_PAPER}): a folder in the input folder for each, with images "
        "and a caption in a .txt file for each image.",
        "`python run.py batch workflows/further/sd15_batch_train_population.json --over "
        "input/people --input-directory input/people`: the LoRAs, their labels and the space of "
        "them lie in .cache/batch.",
        "**The settings** are the paper's: rank 1, 800 steps, learning rate 1e-4. The paper "
        "trains only some attention layers; this trains all.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=_SD15)
    images, texts = w.add("LoadImageTextDataSetFromFolder", folder="my_images")
    resized = w.add("ResizeImagesByShorterEdge", images=images, shorter_edge=512)
    cropped = w.add("CenterCropImages", images=resized, width=512, height=512)
    latents, captions = w.add(
        "MakeTrainingDataset", images=cropped, vae=vae, clip=clip, texts=texts
    )
    _train(w, model, latents, captions, 800, 1)
    w.batch("LoadImageTextDataSetFromFolder.folder", join=("space",))


def demo_batch_label_members(w: Workflow) -> None:
    w.note(
        "Images of a space's members",
        f"**Every member** of a space of LoRAs ({_PAPER}) with the same caption and noise, to be "
        "labeled by you or by a classifier.",
        "`python run.py batch workflows/further/demo_batch_label_members.json --over members.txt`, "
        "with a name such as person_0013 on each line: the images lie on sheets and in index.csv.",
        "**The table of labels** is what W2W Fit Directions takes: a column member, and one for "
        "each attribute.",
    )
    w.group("Model, space and caption")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    space, _ = w.add("GBX_W2WLoadSpace", space_name="avatars-v2-w2w.safetensors")
    positive, negative = encode(w, clip, "portrait, smiling, open eyes")
    w.group("A member")
    point, name, _ = w.add("GBX_W2WSample", space=space, source="member", member_name="person_0013")
    member, *_ = w.add("GBX_W2WApply", model=model, point=point)
    w.group("Images")
    latent = w.add("EmptyLatentImage", width=128, height=128, batch_size=4)
    samples = w.add(
        "KSampler",
        model=member,
        positive=positive,
        negative=negative,
        latent_image=latent,
        seed=53,
        steps=20,
        cfg=3.0,
        sampler_name=sampler_of(w),
        scheduler="normal",
    )
    w.add(
        "SaveImage",
        images=w.add("VAEDecode", samples=samples, vae=vae),
        filename_prefix="glassbox/member",
    )
    w.add("PreviewAny", source=name, node_title="Name")
    w.batch("GBX_W2WSample.member_name", join=("images",))


def sd15_batch_activations_quality(w: Workflow) -> None:
    w.note(
        "Quality of all activations over a folder of images",
        "**Noise, granularity and locality** of every activation, measured on all images of a "
        "folder (arXiv 2410.03558).",
        "`python run.py batch workflows/further/sd15_batch_activations_quality.json --over "
        "ids.txt`, with an ID or a pattern such as up-level1-* on each line: the table of all "
        "lies in .cache/batch.",
        "**The images** are those of a folder in the input folder. Activation Catalog lists the "
        "IDs of a model.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=_SD15)
    images = w.add("LoadImageDataSetFromFolder", folder="my_images")
    images = w.add("ResizeImagesByShorterEdge", images=images, shorter_edge=512)
    images = w.add("CenterCropImages", images=images, width=512, height=512)
    images = w.add("RebatchImages", images=images, batch_size=4096, node_title="All images at once")
    positive = w.add("CLIPTextEncode", clip=clip, text="", node_title="Caption")
    w.group("Measure")
    ids = "up-*-out\nup-*-q\nup-*-k\nup-*-v"
    given = {"model": model, "positive": positive, "vae": vae}
    figure, report, kept, *_ = measure_quality(w, images, ids, "paper_filter", **given)
    w.add("SaveImage", images=figure, filename_prefix="glassbox/activation_quality")
    w.add("PreviewAny", source=report, node_title="Report")
    w.add("PreviewAny", source=kept, node_title="Kept")
    w.batch("GBX_LayerActivationTap.ids", join=("quality",), chunk=8)


def _train(
    w: Workflow, model: Output, latents: Output, positive: Output, steps: int, rank: int
) -> None:
    """A LoRA as the members of a space are: of one rank, trained with noise as drawn."""
    w.group("Train")
    _, plot, _, report = train_lora(
        w,
        {"lora_precision": "fp32"},
        model=model,
        latents=latents,
        positive=positive,
        pairing="off",
        steps=steps,
        learning_rate=0.0001,
        rank=rank,
        seed=1,
        prefix="loras/member",
    )
    w.group("Result")
    w.add("SaveImage", images=plot, filename_prefix="glassbox/member_loss")
    w.add("PreviewAny", source=report, node_title="Report")
