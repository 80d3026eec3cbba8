"""Damage and forge files: bytes, JSON, manifests with valid checksums, and tensors."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from spacecl import store
from spacecl.documents import digest_json

from .outcome import damage

NUMBERS = (0, -1, 1, 2**31, 2**63, 10**40, 1.5, -0.0, 1e308, float("nan"), float("inf"))
TEXTS = ("", "x", "infer", "\0", "\ud800", "../../etc/passwd", "/etc/passwd", "/proc/kmsg", "a" * 5000)
LISTS: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": []}})
ODD: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *LISTS)


def damage_file(folder: Path, draw: random.Random) -> None:
    """Damage the bytes of a random file."""
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"))
    file.write_bytes(damage(file.read_bytes(), draw)[1])


def edit_json(value: Any, draw: random.Random) -> Any:
    """Return JSON with one place removed, replaced, renamed, repeated or nested."""
    value = copy.deepcopy(value)
    places = list(_list_places(value))
    if not places:
        return draw.choice(ODD)
    container, key = draw.choice(places)
    how = draw.choice(("remove", "odd", "odd", "odd", "rename", "repeat", "nest", "other"))
    if how == "remove":
        del container[key]
    elif how == "odd":
        container[key] = draw.choice(ODD)
    elif how == "rename" and isinstance(container, dict):
        container[draw.choice(("", "x", "../x", str(key) * 3))] = container.pop(key)
    elif how == "repeat" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif how == "nest":
        nested: Any = container[key]
        for _ in range(draw.choice((1, 3, 400))):
            nested = [nested] if draw.random() < 0.5 else {"x": nested}
        container[key] = nested
    else:
        other, from_key = draw.choice(places)
        container[key] = copy.deepcopy(other[from_key])
    return value


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in nested JSON, as its container and its key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _list_places(inner)
    elif isinstance(value, list):
        for key, inner in enumerate(value[:20]):
            yield value, key
            yield from _list_places(inner)


def write_json(file: Path, value: Any) -> None:
    file.write_bytes(json.dumps(value).encode())


def _write_manifest(folder: Path, content: Any) -> None:
    """Write a manifest with a valid checksum."""
    write_json(folder / store.MANIFEST, {"sha256": digest_json(content), "content": content})


def forge_manifest(folder: Path, draw: random.Random) -> None:
    """Edit a manifest in one place, and update its checksum."""
    document = json.loads((folder / store.MANIFEST).read_text())
    content = edit_json(document["content"], draw)
    _write_manifest(folder, content)


def forge_tensors(folder: Path, draw: random.Random) -> None:
    """Drop, rename, replace, reshape or change a tensor, and update all checksums."""
    body, files = store.load(folder, dict)
    name = draw.choice(sorted(files))
    tensors = files[name]
    key = draw.choice(sorted(tensors))
    tensor = tensors[key]
    how = draw.choice(("drop", "rename", "type", "shape", "bits", "nan", "empty", "other", "more"))
    if how == "drop":
        del tensors[key]
    elif how == "rename":
        tensors[draw.choice(("x", "keep.7", "core.x", "taken.x", "selected.x", "memory.x", "signature.0.x"))] = tensors.pop(key)
    elif how == "type":
        tensors[key] = tensor.to(draw.choice((torch.float64, torch.int64, torch.bool, torch.uint8, torch.float16)))
    elif how == "shape":
        tensors[key] = draw.choice((tensor.reshape(-1), tensor[None], tensor[..., :-1], torch.cat([tensor, tensor])))
    elif how == "bits" and tensor.numel():
        flat = tensor.reshape(-1).clone()
        at = draw.randrange(flat.numel())
        flat[at] = ~flat[at] if flat.dtype == torch.bool else flat[at] + 1
        tensors[key] = flat.reshape(tensor.shape)
    elif how == "nan" and tensor.is_floating_point():
        tensors[key] = torch.full_like(tensor, draw.choice((float("nan"), float("inf"), 1e38)))
    elif how == "empty":
        tensors[key] = tensor.new_zeros(draw.choice(((), (0,), (0, 0), (1,))))
    elif how == "other":
        tensors[key] = tensors[draw.choice(sorted(tensors))]
    else:
        tensors["more"] = tensor
    store.save(folder, {k: v for k, v in body.items() if k not in ("format", "files")}, files)


def forge_names(folder: Path, draw: random.Random) -> str:
    """Make the manifest list a file outside of the folder, or a link, a pipe, a folder or a huge file; return which."""
    document = json.loads((folder / store.MANIFEST).read_text())
    entry = draw.choice(list(document["content"]["files"].values()))
    how = draw.choice(("absolute", "above", "link", "pipe", "folder", "proc", "sparse"))
    file = folder / entry["file"]
    if how in ("absolute", "above"):
        moved = folder.parent / f"moved-{os.getpid()}"
        shutil.move(file, moved)
        entry["file"] = str(moved) if how == "absolute" else f"../{moved.name}"
    elif how == "proc":
        entry["file"] = draw.choice(("/proc/kmsg", "/dev/zero", "/dev/stdin"))
    else:
        data = file.read_bytes()
        file.unlink()
        if how == "link":
            (folder / "target").write_bytes(data)
            file.symlink_to(draw.choice((folder / "target", Path("/proc/kmsg"), Path("/dev/zero"))))
        elif how == "pipe":
            os.mkfifo(file)
        elif how == "folder":
            file.mkdir()
        else:
            with file.open("wb") as stream:
                stream.truncate(5 << 30)
    _write_manifest(folder, document["content"])
    return how
