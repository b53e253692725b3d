"""The first workflows of the weights family: sampled people, sliders, and the person of one
image.
"""

from __future__ import annotations

from .authoring import Output, Workflow
from .front import for_generating, labeled, prepare, shape_of, show
from .sampling import sample
from .weights import GUIDED, PAPER, PROMPT, SAMPLER, SPACE, STEPS, sampled

#: Of 127 members without glasses the one whose eyes the judge reads most surely as requested, among
#: those on whom all thirteen sliders act at 1, as `acting` in studies/weights/gradual.py reads it.
FRONT = "person_0141"
#: W2W Edit with its sliders live.
_LIVE = {"node_properties": {"glassbox_live": True}, "node_size": (360, 760)}


def demo_weights_sample(w: Workflow) -> None:
    w.note(
        "Meet people who never existed",
        f"**Six people** are composed from a space of 512 drawn people ({PAPER}): skin, hair, its "
        "color, facial hair and glasses, each of another member. Prompt and noise are the same "
        "for all, so only the person differs.",
        "**None of them** is a member: the label output of W2W Sample names the attributes of each "
        "and the members nearest to it.",
        "**Try** another seed; `black skin, afro, no glasses` in person, which all six then have; "
        "source: random, the paper's normal distribution.",
    )
    w.in_columns = True
    w.group("What is needed")

    def space(w: Workflow, ready: dict[str, Output]) -> dict[str, Output]:
        return {"space": w.add("GBX_W2WLoadSpace", space_name=SPACE)[0], **for_generating(ready)}

    ready = prepare(w, "Model, space and prompt", space, PROMPT)
    w.group("Sample people")
    points, *_ = w.add("GBX_W2WSample", space=ready.pop("space"), seed=3, count=6)
    w.group("The same prompt and noise for each")

    def inside(w: Workflow, model: Output, points: Output, **given: Output) -> Output:
        guided, _ = w.add("GBX_W2WGuidance", model=model, point=points, **GUIDED)
        images = sampled(w, model=guided, **given)
        return labeled(w, [images], [f"new person {number}" for number in range(1, 7)], 3, 320)

    sheet = w.subgraph(
        "Generate each", inside, **ready, points=points, seed=5, steps=STEPS, cfg=3.0
    )
    show(w, sheet, "weights_sample", "Sampled people", shape_of(3, 2, 320))


def demo_weights_edit(w: Workflow) -> None:
    w.note(
        "Edit a face with sliders",
        "**Run** it once, then drag a slider of W2W Edit: *Live* is on, so the image follows "
        "within a few seconds.",
        f"**The person** is one of the 512 drawn people of a space ({PAPER}, section 3.3). At 1 an "
        "attribute is as strong as in the most extreme member. Some edits fail on some people; "
        "studies/weights has the counts.",
        "**Try** two sliders at once, another member_name, or another prompt: the person stays "
        "the same.",
    )
    w.in_columns = True
    w.group("A person")

    def person(w: Workflow, ready: dict[str, Output], member_name: Output) -> dict[str, Output]:
        space, _ = w.add("GBX_W2WLoadSpace", space_name=SPACE)
        space, _ = w.add("GBX_W2WFitDirections", space=space)
        point, _, _ = w.add("GBX_W2WSample", space=space, source="member", member_name=member_name)
        return {"point": point, **for_generating(ready)}

    ready = prepare(w, "Person and prompt", person, PROMPT, member_name=FRONT)
    point = ready.pop("point")
    w.group("Drag the sliders")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="beard: 1", **_LIVE)
    w.group("Before and after")

    def both(w: Workflow, model: Output, before: Output, after: Output, **given: Output) -> Output:
        images = [
            sampled(w, model=w.add("GBX_W2WGuidance", model=model, point=one, **GUIDED)[0], **given)
            for one in (before, after)
        ]
        return labeled(w, images, ("before", "after"), 2, 512)

    given = {"before": point, **ready, "after": edited}
    sheet = w.subgraph("Generate both", both, **given, seed=5, steps=STEPS, cfg=3.0)
    show(w, sheet, "weights_edit", "Before and after", shape_of(2, 1, 512))
    inputs = "Person and prompt.member_name", "GBX_W2WEdit.sliders", "Person and prompt.prompt"
    w.app(*inputs, results=("Before and after",))


def demo_weights_edit_photo(w: Workflow) -> None:
    w.note(
        "Find a person from one image and edit them",
        "**W2W Invert**, inside the node on the left, finds the person of one image in the space: "
        f"120 steps train a few coefficients ({PAPER}, section 3.4), about half a minute on two "
        "CPU cores. Open the node to see its curve, and the person after every 20 steps. "
        "W2W Edit then edits that person.",
        "**Image to image** puts the edited person back. A mask limits both to the person, so the "
        "background stays.",
        "**Try** the sliders; another image_index, with a prompt that describes it; more steps.",
    )
    w.in_columns = True
    w.group("One image")

    def found(
        w: Workflow, ready: dict[str, Output], image_index: Output, steps: Output
    ) -> dict[str, Output]:
        image, mask, _ = w.add("GBX_DemoPicture", image_index=image_index)
        space, _ = w.add("GBX_W2WLoadSpace", space_name=SPACE)
        space, _ = w.add("GBX_W2WFitDirections", space=space)
        point, *_ = w.add(
            "GBX_W2WInvert",
            model=ready["model"],
            space=space,
            latent=w.add("VAEEncode", pixels=image, vae=ready["vae"]),
            positive=ready["positive"],
            mask=mask,
            vae=ready["vae"],
            steps=steps,
            preview_interval=20,
            gradient_checkpointing=False,
        )
        return {"point": point, **for_generating(ready), "image": image, "mask": mask}

    caption = "portrait, yellow hoodie, smiling, dotted blue background"
    w.seconds = 30
    ready = prepare(w, "Find the person", found, caption, image_index=5, steps=120)
    point = ready.pop("point")
    w.group("Edit the person")
    edited, _ = w.add("GBX_W2WEdit", point=point, edits="dark skin: 0.4", **_LIVE)
    w.group("Back into the image")

    def inside(w: Workflow, model, before, after, image, mask, vae, **given: Output) -> Output:
        latent = w.add("VAEEncode", pixels=image, vae=vae)
        noised = w.add("SetLatentNoiseMask", samples=latent, mask=mask)
        shown = [image]
        for edit in ({}, {"edited_point": after}):
            guided, _ = w.add("GBX_W2WGuidance", model=model, point=before, **edit, **GUIDED)
            made = sample(
                w, vae, sampler=SAMPLER, model=guided, latent_image=noised, denoise=0.8, **given
            )
            place = {"x": 0, "y": 0, "resize_source": False}
            shown.append(
                w.add("ImageCompositeMasked", destination=image, source=made, mask=mask, **place)
            )
        return labeled(w, shown, ("image", "person found, generated", "person edited"), 3, 384)

    given = {"before": point, **ready, "after": edited}
    sheet = w.subgraph("Put the person back", inside, **given, seed=5, steps=STEPS, cfg=3.0)
    show(w, sheet, "weights_photo", "The image, the person found, and edited", shape_of(3, 1, 384))
