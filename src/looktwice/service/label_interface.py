"""Verdicts in the words of Label Studio: the labelling interface of a project, and predictions that fit into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from xml.etree import ElementTree

from looktwice.errors import DataError

NONE = "none of these"
"""The choice of somebody who knows that it is none of the labels that were named, and no more."""
UNSURE = "can't tell"


@dataclass(frozen=True)
class Interface:
    """Where a project shows a picture and asks for one label of it."""

    control: str = "label"
    """The name of the choices."""
    image: str = "image"
    """The name of the picture that they are about."""
    field: str = "image"
    """The field of a task's data that holds the picture's address."""
    choices: Mapping[str, str] | None = None
    """What an annotation says for each label that is offered; None offers any."""

    @classmethod
    def read(cls, config: str) -> Self:
        """From a project's labelling configuration: its first choices about a picture."""
        if "<!" in config.replace("<!--", ""):
            raise DataError("the labelling configuration declares entities; leave them out")
        try:
            root = ElementTree.fromstring(config)  # noqa: S314
        except ElementTree.ParseError as error:
            raise DataError(f"the labelling configuration is not XML ({error}); save it again") from None
        fields = {tag.get("name"): tag.get("value", "").removeprefix("$") for tag in root.iter("Image")}
        for tag in root.iter("Choices"):
            image = tag.get("toName")
            if image and image in fields and tag.get("name"):
                offered = {
                    value: each.get("alias", value) for each in tag.iter("Choice") if (value := each.get("value"))
                }
                return cls(str(tag.get("name")), image, fields[image], offered)
        raise DataError("the project has no <Choices> about an <Image>; use the configuration that `export` wrote")

    def prediction(self, label: str, confidence: float, version: str) -> dict[str, object]:
        """A prediction; without a choice where the project does not offer the label."""
        choice = label if self.choices is None else self.choices.get(label)
        result = {
            "from_name": self.control,
            "to_name": self.image,
            "type": "choices",
            "value": {"choices": [choice]},
            "score": confidence,
        }
        return {"model_version": version, "score": confidence, "result": [] if choice is None else [result]}


def configuration(labels: Iterable[str]) -> str:
    """The labelling configuration of a project that asks for one of these labels, or says why not."""
    words = [*dict.fromkeys(labels), NONE, UNSURE]
    if len(set(words)) < len(words):
        raise DataError(f"a label is called {NONE!r} or {UNSURE!r}, which people are to say of pictures; rename it")
    names = Interface()
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=names.image, value=f"${names.field}")
    choices = ElementTree.SubElement(view, "Choices", name=names.control, toName=names.image, choice="single")
    choices.set("required", "true")
    for word in words:
        ElementTree.SubElement(choices, "Choice", value=word)
    ElementTree.indent(view)
    return ElementTree.tostring(view, "unicode") + "\n"
