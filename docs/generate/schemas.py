"""Write the JSON Schemas of all files that spacecl writes as JSON, from the types that it validates them with.

python docs/generate/schemas.py writes them into docs/schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spacecl.data.cache import EntryDocument
from spacecl.documents import Sha256
from spacecl.learning.checkpoints import Checkpoint
from spacecl.learning.saved import SavedLearner
from spacecl.options import describe_options
from spacecl.runs.config import Config
from spacecl.runs.events import AnyEvent
from spacecl.runs.metrics_log import AnyRow
from spacecl.runs.result import Result
from spacecl.runs.run_folder import TaskFacts
from spacecl.runs.tune import TuneResult
from spacecl.store import FORMAT, Listing

FOLDER = Path(__file__).parents[1] / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schemas() -> dict[str, dict[str, Any]]:
    """The schemas by the names of their files."""
    return {
        "config.schema.json": _describe_settings("config.json: the settings of a run", Config),
        "tasks.schema.json": _describe("tasks.json: the data of a run's tasks, by name", dict[str, TaskFacts]),
        "metrics.schema.json": _describe("One line of metrics.jsonl: an epoch or a test", AnyRow),
        "events.schema.json": _describe("One line of events.jsonl: a report of the process of a run", AnyEvent),
        "result.schema.json": _describe("result.json: the outcome of a run", Result),
        "tune.schema.json": _describe("tune.json: the outcome of a search for settings", TuneResult),
        "learner.schema.json": _describe_manifest("spacecl.json of a saved learner", SavedLearner),
        "checkpoint.schema.json": _describe_manifest("spacecl.json of a checkpoint", Checkpoint),
        "cache.schema.json": _describe("about.json of a decoded dataset in the cache", EntryDocument),
    }


def format_schema(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1) + "\n"


def _describe(title: str, kind: Any) -> dict[str, Any]:
    return {"$schema": DIALECT, **TypeAdapter(kind).json_schema(), "title": title}


def _describe_settings(title: str, kind: type) -> dict[str, Any]:
    """Describe a class of options, every option with its help text."""
    schema = _describe(title, kind)
    schema["description"] = (kind.__doc__ or "").splitlines()[0]
    for entry in describe_options(kind):
        schema["properties"][entry.name]["description"] = entry.help
    return schema


def _describe_manifest(title: str, kind: Any) -> dict[str, Any]:
    """Describe a manifest of `spacecl.store`: a checksum and the content, which also lists the files of tensors."""
    parts = [TypeAdapter(part).json_schema() for part in (Listing, kind)]
    definitions = {name: schema for part in parts for name, schema in part.pop("$defs", {}).items()}
    version = {"type": "object", "properties": {"format": {"const": FORMAT}}, "required": ["format"]}
    return {
        "$schema": DIALECT,
        "title": title,
        "type": "object",
        "properties": {"sha256": TypeAdapter(Sha256).json_schema(), "content": {"allOf": [version, *parts]}},
        "required": ["sha256", "content"],
        "$defs": definitions,
    }


if __name__ == "__main__":
    for name, schema in make_schemas().items():
        (FOLDER / name).write_text(format_schema(schema))
