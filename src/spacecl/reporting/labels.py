"""Name the arms of a comparison after the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..data.benchmarks.published import PUBLISHED
from ..runs.config import identify_settings, to_toml
from ..runs.methods import get_methods, is_own, shorten_method

TITLES = {"finetune": "Fine-tuning"}  # of methods that are not called by the names of their classes
PAPER_CHOICES = tuple(name for name in PUBLISHED if name != "samples")  # options of SPACE that the paper decides
Settings = Mapping[str, Any]  # Config.to_json()


def title_method(name: str) -> str:
    """What a method is called in tables and figures, by its name on the command line."""
    return shorten_method(name) if is_own(name) else TITLES.get(name) or get_methods()[name].__name__


def name_family(config: Settings) -> str:
    """Name a method and, for SPACE, the choices in which it is the paper's or differs from it.

    Arms of one family differ only in numbers, such as thresholds, or in settings that are not the method's.
    """
    name, options = title_method(config["method"]), config["options"]
    if config["method"] != "space":
        return name
    published = [choice for choice in PAPER_CHOICES if options[choice] == PUBLISHED[choice]]
    is_paper = 2 * len(published) > len(PAPER_CHOICES)
    exceptions = [choice for choice in PAPER_CHOICES if (choice in published) != is_paper]
    parts = [_format_setting(choice, options[choice]) for choice in exceptions]
    parts += [] if options["projection"] else ["without projection"]
    return f"{name}{'.paper' if is_paper else ''}{f' ({_join(parts)})' if parts else ''}"


def list_differences(config: Settings, others: Sequence[Settings]) -> str:
    """List the settings that tell one arm from the others and that its family's name does not say."""
    flat = _flatten(config)
    everyone = [_flatten(other) for other in others]
    same_method = [other for other in everyone if other["method"] == config["method"]]
    in_family = {f"options.{name}" for name in (*PAPER_CHOICES, "projection") if config["method"] == "space"}
    namesakes = {other["method"] for other in everyone if title_method(other["method"]) == title_method(config["method"])}
    in_family |= {"method"} if len(namesakes) == 1 else set()  # classes of one name in different files need more
    different = [
        key
        for key in flat
        if key not in in_family
        and any(other.get(key) != flat[key] for other in (same_method if key.startswith("options.") else everyone))
    ]
    return _join(_format_setting(key.split(".")[-1], flat[key]) for key in different)


def _flatten(config: Settings) -> dict[str, Any]:
    """Put all settings but the seed into one dictionary, with names such as train.lr and options.variance."""
    flat: dict[str, Any] = {}
    for key, value in identify_settings(config).items():
        if key in ("train", "options"):
            flat |= {f"{key}.{name}": entry for name, entry in value.items()}
        elif key != "seed":
            flat[key] = value
    return flat


def _format_setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, Mapping) and value and not any(isinstance(entry, Mapping) for entry in value.values()):
        return f"{name} {' '.join(f'{key} {entry}' for key, entry in value.items())}"
    return f"{name} {'none' if value is None or value == {} else value if isinstance(value, str) else to_toml(value)}"


def _join(parts: Iterable[str]) -> str:
    return ", ".join(parts)
