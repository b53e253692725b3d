"""The widgets that the canvas shows for a node class, in the order in which it saves their values.

A saved workflow lists the values of a node's widgets without their names. Which value belongs to
which input follows from the node's description in ComfyUI's `/object_info` and from the widgets
that the front end adds of its own. A dynamic combo shows further widgets, which depend on the
option that is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_NO_DEFAULT = {"INT": 0, "FLOAT": 0, "STRING": "", "BOOLEAN": False, "COMBO": None}
_SEEDS = ("seed", "noise_seed")
_UPLOADS = ("image_upload", "animated_image_upload", "video_upload")
_DYNAMIC_COMBO = "COMFY_DYNAMICCOMBO_V3"
_BOUNDING_BOX = "BOUNDING_BOX"
_BOX_FIELDS = ("x", "y", "width", "height")  # number widgets that the front end adds to a box
_BROWSER_ONLY = frozenset({"AUDIO_RECORD", "LOAD_3D", "LOAD_3D_ANIMATION", "WEBCAM"})


@dataclass(frozen=True)
class Widget:
    """One widget of a node: the input that it fills, its first value, and how the front end treats
    its value.
    """

    name: str
    default: object = None
    in_prompt: bool = True  # False: the front end's own, such as the control after generate
    dynamic_prompts: bool = False  # True: comments are removed from the text when it is queued
    advanced: bool = False  # True: newer front ends show it on request
    optional: bool = False  # True: nodes run without it, with their own default


@dataclass(frozen=True)
class Input:
    """One input of a node class: its name, its type (COMBO for a list of choices), and its
    options.
    """

    name: str
    kind: str
    options: dict
    required: bool

    @property
    def is_widget(self) -> bool:
        """Whether the canvas shows a widget for it, beside the socket that most widgets have.

        Kinds that are newer than this table (COLOR, CURVE, BOUNDING_BOX) are widgets where the
        description says whether they have a socket, which it says of widgets alone.
        """
        if self.options.get("forceInput"):
            return False
        return (
            self.kind in _NO_DEFAULT
            or self.is_dynamic
            or "socketless" in self.options
            or "widgetType" in self.options
        )

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a combo whose options bring inputs of their own."""
        return self.kind == _DYNAMIC_COMBO

    @property
    def value_kind(self) -> str:
        """The type of its value, as a list of values has it: a dynamic combo takes the name of an
        option.
        """
        if self.is_dynamic:
            return "COMBO"
        if self.kind == "COLOR":  # such as #00ff00
            return "STRING"
        return self.kind

    @property
    def keys(self) -> list[str]:
        """The options of a dynamic combo."""
        return [option["key"] for option in self.options.get("options") or ()]

    def chosen_inputs(self, key: object) -> list[Input]:
        """The inputs that an option of a dynamic combo brings, named "combo.input"; none for an
        unknown option.
        """
        for option in self.options.get("options") or ():
            if option["key"] == key:
                return [
                    Input(
                        f"{self.name}.{chosen.name}", chosen.kind, chosen.options, chosen.required
                    )
                    for chosen in inputs({"input": option.get("inputs") or {}})
                ]
        return []

    @property
    def needs_browser(self) -> bool:
        """Whether its value exists only in an open browser, such as a recording."""
        return self.kind in _BROWSER_ONLY


def inputs(info: dict) -> Iterator[Input]:
    """The inputs of a node class in the order of its description: the required ones, then the
    optional ones.
    """
    for section in ("required", "optional"):
        for name, spec in info["input"].get(section, {}).items():
            options = dict(spec[1]) if len(spec) > 1 else {}
            kind = spec[0]
            if isinstance(kind, list):
                options.setdefault("options", kind)
                kind = "COMBO"
            yield Input(name, options.get("widgetType") or kind, options, section == "required")


Values = Sequence[object] | Mapping[str, object]


def widgets(info: dict, values: Values = ()) -> list[Widget]:
    """The widgets of a node class in the order in which the canvas saves their values.

    ``values``: the values of a saved node, in this order or by name, which decide what dynamic
    combos show; without them every combo stands at its default.
    """
    described = list(inputs(info))
    shown: list[Widget] = []
    for input_ in described:
        if input_.required:
            _show(input_, values, shown)
    shown += _upload_button(described)
    for input_ in described:
        if not input_.required:
            _show(input_, values, shown)
    return shown


def dynamic_combos(info: dict, values: Mapping[str, object]) -> Iterator[tuple[Input, object]]:
    """Every dynamic combo that a node shows with its value, nested ones too; ``values`` by name."""
    waiting = list(inputs(info))
    while waiting:
        input_ = waiting.pop(0)
        if input_.is_dynamic and input_.is_widget:
            key = values.get(input_.name, default_value(input_))
            yield input_, key
            waiting += input_.chosen_inputs(key)


def all_inputs(info: dict) -> Iterator[Input]:
    """The inputs of a node class, and those that its dynamic combos show for any of their
    options.
    """
    waiting = list(inputs(info))
    while waiting:
        input_ = waiting.pop(0)
        yield input_
        if input_.is_dynamic:
            waiting += [chosen for key in input_.keys for chosen in input_.chosen_inputs(key)]


def _show(input_: Input, values: Values, shown: list[Widget]) -> None:
    """Add the widget of an input, and the widgets that the front end adds behind it."""
    if not input_.is_widget:
        return
    place = len(shown)
    options = input_.options
    shown.append(
        Widget(
            input_.name,
            default_value(input_),
            dynamic_prompts=bool(options.get("dynamicPrompts")),
            advanced=bool(options.get("advanced")),
            optional=not input_.required,
        )
    )
    if options.get("control_after_generate", input_.kind == "INT" and input_.name in _SEEDS):
        shown.append(Widget("control_after_generate", "fixed", in_prompt=False))
        if input_.kind == "COMBO":
            shown.append(Widget("control_filter_list", "", in_prompt=False))
    if input_.kind == _BOUNDING_BOX:
        shown += [Widget(f"{input_.name}:{field}", in_prompt=False) for field in _BOX_FIELDS]
    if input_.is_dynamic:
        for chosen in input_.chosen_inputs(_value(values, place, input_)):
            _show(chosen, values, shown)


def _value(values: Values, place: int, input_: Input) -> object:
    """The value of a widget in a saved node, or its default."""
    if isinstance(values, Mapping):
        return values.get(input_.name, default_value(input_))
    return values[place] if place < len(values) else default_value(input_)


def default_value(input_: Input) -> object:
    """The value that the canvas shows first; None for kinds of widgets that have none."""
    if "default" in input_.options:
        return input_.options["default"]
    if input_.is_dynamic:
        return next(iter(input_.keys), None)
    choices = input_.options.get("options") or [_NO_DEFAULT.get(input_.kind)]
    return choices[0]


def _upload_button(described: list[Input]) -> list[Widget]:
    """The button that the front end adds behind the required inputs of a node that can upload a
    file.
    """
    for input_ in described:
        if input_.kind != "COMBO" or not input_.required:
            continue
        if any(input_.options.get(name) for name in _UPLOADS):
            return [Widget("upload", "image", in_prompt=False)]
        if input_.name == "audio" and input_.options.get("audio_upload"):
            return [Widget("upload", "", in_prompt=False)]
    return []
