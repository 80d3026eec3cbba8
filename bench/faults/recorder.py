"""Record the operations of `spacecl.disk` while it works on a real folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spacecl import disk

ROOT = 0  # the inode of the recorded folder

Tree = dict[str, bytes | None]  # path -> content, None for a folder


@dataclass(frozen=True)
class Operation:
    """One primitive operation: on the data of a file, or on names."""

    kind: str
    text: str
    inode: int = ROOT
    names: tuple[tuple[int, str, int | None], ...] = ()  # (folder, name, its new inode)
    data: bytes = b""
    size: int = 0
    folder: bool = False


class Recorder(disk.System):
    """Perform every operation and record it, with inodes in place of paths."""

    def __init__(self, root: Path):
        self.root, self.log = root, list[Operation]()
        self.folders: dict[int, dict[str, int]] = {ROOT: {}}
        self.open_files: dict[int, int] = {}
        self.count = ROOT
        self.first = self._scan(root, ROOT)

    def _scan(self, folder: Path, inode: int) -> Tree:
        """Return what is on the disk before the first operation."""
        tree: Tree = {}
        for path in sorted(folder.iterdir()):
            self.count += 1
            self.folders[inode][path.name] = number = self.count
            tree[str(path.relative_to(self.root))] = None if path.is_dir() else path.read_bytes()
            if path.is_dir():
                self.folders[number] = {}
                tree |= self._scan(path, number)
        return tree

    def _locate(self, path: Path) -> tuple[int, str]:
        inode = ROOT
        *parents, name = path.absolute().relative_to(self.root).parts
        for part in parents:
            inode = self.folders[inode][part]
        return inode, name

    def _change(self, kind: str, text: str, *names: tuple[int, str, int | None], **more: Any) -> None:
        for folder, name, inode in names:
            if inode is None:
                self.folders[folder].pop(name, None)
            else:
                self.folders[folder][name] = inode
        self.log.append(Operation(kind, text, names=names, **more))

    def open(self, file: Path, flags: int) -> int:
        new = not file.exists()
        descriptor = super().open(file, flags)
        folder, name = self._locate(file)
        if new:
            self.count += 1
            self._change("create", f"create {name}", (folder, name, self.count), inode=self.count)
        self.open_files[descriptor] = self.folders[folder][name]
        return descriptor

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        del self.open_files[descriptor]

    def write(self, descriptor: int, data: Any) -> int:
        size = super().write(descriptor, data)
        inode = self.open_files[descriptor]
        self.log.append(Operation("write", f"write {size} bytes to {inode}", inode, data=bytes(data[:size])))
        return size

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        inode = self.open_files[descriptor]
        self.log.append(Operation("truncate", f"truncate {inode} to {size}", inode, size=size))

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        inode = self.open_files[descriptor]
        self.log.append(Operation("sync", f"sync {inode}", inode))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        (before, old), (after, new) = self._locate(source), self._locate(target)
        self._change("rename", f"rename {old} to {new}", (before, old, None), (after, new, self.folders[before][old]))

    def unlink(self, file: Path) -> None:
        super().unlink(file)
        folder, name = self._locate(file)
        if name in self.folders[folder]:  # locks are made by another library
            self._change("unlink", f"unlink {name}", (folder, name, None))

    def make_folder(self, folder: Path) -> None:
        super().make_folder(folder)
        parent, name = self._locate(folder)
        self.count += 1
        self.folders[self.count] = {}
        self._change("make folder", f"make folder {name}", (parent, name, self.count), inode=self.count, folder=True)

    def remove_folder(self, folder: Path) -> None:
        super().remove_folder(folder)
        parent, name = self._locate(folder)
        self._change("remove folder", f"remove folder {name}", (parent, name, None))

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        if folder.absolute() == self.root:
            inode = ROOT
        elif self.root in folder.absolute().parents:
            parent, name = self._locate(folder)
            inode = self.folders[parent][name]
        else:
            return
        self.log.append(Operation("sync folder", f"sync folder {inode}", inode))


@contextmanager
def record(root: Path) -> Iterator[Recorder]:
    """Record the operations on a folder while the context is open."""
    usual, disk.system = disk.system, Recorder(root.absolute())
    try:
        yield disk.system
    finally:
        disk.system = usual
