"""Workflows of sparse autoencoders: the features of a part, and steering by them."""

from __future__ import annotations

from .activation_steering import side_by_side
from .activations import CUSTOM_IDS, SD15, save
from .authoring import Output, Workflow
from .sampling import encode, generate, generate_latents

_TURBO = "sd_xl_turbo_1.0_fp16.safetensors"
#: A folder of SDXL Unbox, as published.
_PUBLISHED = "unet.up_blocks.0.attentions.1_k10_hidden5120_auxk256_bs4096_lr0.0001/final"
_TEXT = (
    "portrait, light skin, short brown hair, shaven, no glasses, smiling, open eyes, blue hoodie"
)


def demo_activations_sparse_features(w: Workflow) -> None:
    w.note(
        "Features of a sparse autoencoder",
        "**The autoencoder** writes each position of the first block as a sum of a few of many "
        "features (arXiv 2406.04093, 2410.22366).",
        "**The features** are those that act most in the green background of the first face, and "
        "where else they act.",
        "**Without and with** these features added: same noise, same caption, which names no "
        "background.",
        "**Try** another face, another part, or fewer features. Experimental: hardly any feature "
        "means one attribute.",
    )
    w.group("Model and images")
    model, clip, vae = w.add("GBX_LoadDemoModel")
    images, face, _ = w.add("GBX_DemoPicture", image_index=4, count=20)
    autoencoder, ids, report = w.add(
        "GBX_LoadSparseAutoencoder", file="avatars-v2-sparse-autoencoder.safetensors"
    )
    w.add("PreviewAny", source=report, node_title="The autoencoder")

    def features(
        w: Workflow, face: Output, ids: Output, clip: Output, **given: Output
    ) -> tuple[Output, ...]:
        positive = w.add("CLIPTextEncode", clip=clip, text="portrait", node_title="Caption")
        tapped = {"model": given["model"], "vae": given["vae"], "image": given["image"]}
        activations, _ = w.add(
            "GBX_LayerActivationTap",
            preset=CUSTOM_IDS,
            ids=ids,
            positive=positive,
            noise_samples=4,
            **tapped,
        )
        figure, strongest, _, report = w.add(
            "GBX_SparseFeatures",
            autoencoder=given["autoencoder"],
            activations=activations,
            image=given["image"],
            count=given["count"],
            mask=w.add("InvertMask", mask=face),
        )
        return figure, strongest, report

    w.group("Features of the background")
    given = {"model": model, "clip": clip, "vae": vae, "autoencoder": autoencoder, "ids": ids}
    figure, strongest, report = w.subgraph(
        "Features of the background", features, **given, image=images, face=face, count=3
    )
    save(w, figure, "sparse_features", "Where they act, and the strongest images")
    w.add("PreviewAny", source=report, node_title="The features")
    steered = w.add(
        "GBX_SparseFeatureSteering", model=model, autoencoder=autoencoder, strengths=strongest
    )
    side_by_side(w, (model, steered), clip, vae, _TEXT, "sparse_features", ("Plain", "Steered"))


def sdxl_activations_sparse_features(w: Workflow) -> None:
    w.note(
        "Features of SDXL Turbo",
        "**The autoencoder** is one of SDXL Unbox (arXiv 2410.22366): a folder of the release in "
        "the input folder, under its published name, with config.json, state_dict.pth and "
        "mean.pt.",
        "**The features** are the strongest of the first of four images, generated in one step, "
        "as it was trained.",
        "**Without and with** these features made twice as strong: same noise, same prompt.",
        "**Try** mode add with a brushed mask, -1 to remove a feature, or the folders of the "
        "other three blocks.",
    )
    w.group("Model and autoencoder")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=_TURBO)
    autoencoder, ids, _ = w.add("GBX_LoadSparseAutoencoder", file=_PUBLISHED)
    w.group("Recorded run")
    recording_model, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset=CUSTOM_IDS,
        ids=ids,
        recorded_steps="last",
        rows="conditional",
    )
    text = encode(w, clip, _PROMPT)
    latent = w.add("EmptyLatentImage", width=512, height=512, batch_size=4)
    numbers = {"seed": 0, "steps": 1, "cfg": 1.0}
    samples, image = generate_latents(
        w, recording_model, *text, latent, vae, sampler="euler_ancestral", **numbers
    )
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, latent=samples)
    save(w, image, "sdxl_sparse_plain", "Plain")
    w.group("Features")
    figure, strongest, _, report = w.add(
        "GBX_SparseFeatures", autoencoder=autoencoder, activations=activations, image=image
    )
    save(w, figure, "sdxl_sparse_features", "Where they act, and the strongest images")
    w.add("PreviewAny", source=report, node_title="The features")
    w.group("Steered run")
    steered = w.add(
        "GBX_SparseFeatureSteering",
        model=model,
        autoencoder=autoencoder,
        strengths=strongest,
        mode="scale",
    )
    image = generate(
        w, steered, *text, latent, vae, sampler="euler_ancestral", what="steered", **numbers
    )
    save(w, image, "sdxl_sparse_steered", "Steered")


def sd15_activations_train_sparse_autoencoder(w: Workflow) -> None:
    w.note(
        "Train a sparse autoencoder on SD1.5",
        "**Every prompt** is sampled, and each position of the middle block becomes a sum of 16 "
        "of 5120 features (arXiv 2406.04093, 2410.22366).",
        "**The curve** shows how much of held-out positions is explained. A stopped run goes on "
        "where it was.",
        "**The features** are the strongest of a new image, and where they act in it.",
        "**Try** hundreds of prompts of your own, or image_folder with vae. Good features take "
        "hours on a GPU.",
    )
    w.group("Model and training")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name=SD15)
    latent = w.add("EmptyLatentImage", width=512, height=512, batch_size=1)
    autoencoder, _, figure, report = w.add(
        "GBX_TrainSparseAutoencoder",
        model=model,
        clip=clip,
        latent=latent,
        prompts="\n".join(f"a photo of {one}" for one in _SUBJECTS),
        features=5120,
        steps=20,
        cfg=7.0,
        name="glassbox/sd15_autoencoder",
    )
    save(w, figure, "sd15_sparse_training", "Explained variance")
    w.add("PreviewAny", source=report, node_title="The autoencoder")
    w.group("Features of an image")
    recording_model, recording = w.add(
        "GBX_ActivationRecorder",
        model=model,
        preset=CUSTOM_IDS,
        ids="mid-vit-out",
        recorded_steps="last",
        rows="conditional",
    )
    text = encode(w, clip, _PROMPT)
    samples, image = generate_latents(
        w, recording_model, *text, latent, vae, seed=0, steps=20, cfg=7.0
    )
    activations, _, _ = w.add("GBX_ReadActivations", recording=recording, latent=samples)
    figure, *_ = w.add(
        "GBX_SparseFeatures", autoencoder=autoencoder, activations=activations, image=image
    )
    save(w, figure, "sd15_sparse_features", "Where they act, and the strongest images")


_SUBJECTS = (
    "a dog on a beach",
    "a city street at night",
    "a bowl of fruit",
    "a mountain lake",
    "a red car",
    "an old woman",
    "a wooden chair",
    "a train station",
)
_PROMPT = "a photo of a dog on a beach"
