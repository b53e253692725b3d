"""The workflows of W2W Train Space: a space from folders of images."""

from .authoring import Output, Workflow
from .front import labeled, shape_of, show
from .sampling import empty_latent, encode, generate
from .weights import PAPER, Demo

#: Of W2W Train Space on the demo's sixteen people: a minute on one quiet core.
TRAINING = {
    "steps": 90,
    "learning_rate": 0.004,
    "members_per_step": 16,
    "images_per_member": 2,
    "batch_size": 96,
    "resolution": 128,
    "gradient_checkpointing": False,
    "preview_interval": 20,
}


def train_space(w: Workflow, fixed: dict, **given) -> tuple[Output, ...]:
    """A training in the subgraph "Train a space": space, previews and report; ``given``: the inputs
    that it shows.
    """

    def inside(w: Workflow, **given: Output) -> dict[str, Output]:
        space, previews, _, _, report = w.add("GBX_W2WTrainSpace", **given, **fixed)
        return {"space": space, "previews": previews, "report": report}

    return w.subgraph("Train a space", inside, **given)


def demo_weights_train_space(w: Workflow) -> None:
    w.note(
        "A space from folders of images",
        "**Sixteen people**, a folder of five images each, become a space in one training: "
        "everybody shares what is trained but a code of sixteen numbers (W2W Train Space; the "
        "joint training is Glassbox's own), about half a minute on two CPU cores. Captions say "
        "what varies in an image, and nothing of who it is.",
        "**Then it is a space like any other**: here one of the sixteen, the same moved by a "
        "slider, and a sampled person. The report says how much the codes say of who it is.",
        "**With your own**: a folder in ComfyUI's input folder, in it a folder of images for each "
        "person. Use images of people who have agreed to it.",
        "**Open** Train a space for its curve, Finish now and every setting. **Try** more steps; "
        "other people; other sliders of W2W Edit; W2W To LoRA.",
    )
    w.seconds = 30
    demo = Demo(w, with_space=False)
    w.group("Training")
    shown = {name: TRAINING[name] for name in ("steps", "learning_rate")}
    space, previews, report = train_space(
        w,
        {name: value for name, value in TRAINING.items() if name not in shown},
        model=demo.model,
        clip=demo.clip,
        vae=demo.vae,
        folder="avatars-v2-people",
        prompt="portrait",
        **shown,
    )
    w.add("PreviewAny", source=report, node_title="Report")
    demo.save(previews, "learned_previews", "Two people and a sampled point")
    w.group("A slider of the space")
    person, _, _ = w.add(
        "GBX_W2WSample",
        space=space,
        source="member",
        member_name="person_03",
        node_title="One of the sixteen",
    )
    edited, _ = w.add("GBX_W2WEdit", point=person, edits="PC 2: 1")
    sampled, _, _ = w.add(
        "GBX_W2WSample",
        space=space,
        seed=4,
        components=15,
        spread=0.8,
        source="random",
        node_title="A sampled person",
    )
    images = demo.images(person=person, edited=edited, sampled=sampled)

    def sheet(w: Workflow, **images: Output) -> Output:
        return labeled(
            w, list(images.values()), ("one of the sixteen", "PC 2: 1", "a sampled person"), 3, 320
        )

    names = ("person", "edited", "sampled")
    shown = w.subgraph("On one sheet", sheet, **dict(zip(names, images, strict=True)))
    show(w, shown, "weights_learned_people", "People of the space", shape_of(3, 1, 320), 480)


def sdxl_weights_train_space(w: Workflow) -> None:
    w.note(
        "A space from folders of images with SDXL",
        "**Put images** of people into input/people, a folder for each person, 3 to 20 images "
        "each, and only of people who agreed to it. W2W Train Space learns a space in one "
        f"training (the joint training is Glassbox's own; {PAPER} collects LoRAs): sample people "
        "from it, edit them, export a point as a LoRA.",
        "**Captions**: a .txt file of the same name says what varies in an image (pose, clothes, "
        "place), never who it is. Images without one use `prompt`.",
        "**Learning rate and steps** were only tuned on the demo model: watch the previews, and "
        "start low. A stopped run resumes exactly from its checkpoint.",
        "Tested with random weights of this architecture, not with real images.",
    )
    w.group("Model")
    model, clip, vae = w.add("CheckpointLoaderSimple", ckpt_name="sd_xl_base_1.0.safetensors")
    positive, negative = encode(w, clip, "photo of a person in a garden")
    w.group("Training")
    trained, previews, report = train_space(
        w,
        {"resolution": 1024, "batch_size": 2},
        model=model,
        clip=clip,
        vae=vae,
        folder="people",
        prompt="photo of a person",
        checkpoint_name="glassbox/train_space",
    )
    w.add("PreviewAny", source=report, node_title="Report")
    w.add(
        "SaveImage", images=previews, filename_prefix="glassbox/train_space", node_title="Previews"
    )
    space, note = w.add(
        "GBX_W2WSaveSpace", space=trained, filename="learned-people-sdxl", storage="float16"
    )
    w.add("PreviewAny", source=note, node_title="Saved")
    w.group("A sampled person, edited")
    point, _, _ = w.add("GBX_W2WSample", space=space, seed=1)
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="PC 1: 1")
    patched, _ = w.add("GBX_W2WGuidance", model=model, point=point, edited_point=edited)
    image = generate(
        w, patched, positive, negative, empty_latent(w, 1024, 1), vae, seed=5, steps=30, cfg=6.0
    )
    w.add(
        "SaveImage",
        images=image,
        filename_prefix="glassbox/learned_person",
        node_title="A sampled person, edited",
    )
    w.add("GBX_W2WToLoRA", point=edited, filename_prefix="loras/learned_person")
