"""Benchmarks that users register: a name for their tasks, with a network and with how to train."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..user_code import get_executing_file, load_function, run_file
from ..validation import show
from .benchmarks.presets import BENCHMARKS

if TYPE_CHECKING:
    from torch import nn

    from .task import Task


@dataclass(frozen=True)
class RegisteredBenchmark:
    """A benchmark that a user has registered."""

    name: str
    tasks: Callable[[], Sequence[Task]]
    network: Callable[[], nn.Module] | str | None
    train: Mapping[str, Any]  # options of `Recipe`; what it lacks is chosen by the number of examples
    file: Path | None  # that registered it, if the command line names it

    @property
    def model(self) -> str | None:
        """The setting that names the network; None if there is none."""
        return f"{self.file}:{self.name}" if callable(self.network) else self.network


_registered: dict[tuple[Path | None, str], RegisteredBenchmark] = {}


def register(
    name: str,
    tasks: Callable[[], Sequence[Task]],
    *,
    network: Callable[[], nn.Module] | str | None = None,
    recipe: Any = None,
) -> None:
    """Register a benchmark of your own. Registering a name again replaces it.

    If a file `my_benchmarks.py` does so, `spacecl run my_benchmarks.py:NAME` runs it, and so do `compare` and `tune`. In
    Python, `spacecl.benchmarks.load(NAME)` returns its tasks.

    Parameters
    ----------
    name : letters, digits, and `-`, `_` or `.` between them; not that of a benchmark of spacecl.
    tasks : a function without arguments that returns a list of `spacecl.Task`, each with test data.
    network : a function without arguments that returns a `torch.nn.Module`, or the name of a network of spacecl, such as
        "cnn". Default: "mlp". `--model` replaces it.
    recipe : options of `spacecl.Recipe` as a dictionary, or a `spacecl.Recipe`. What a dictionary does not have is chosen by
        the number of examples, as `Recipe.auto` does. `--set train.NAME=VALUE` replaces single values.

    >>> import torch, spacecl
    >>> x = torch.randn(60, 4)
    >>> def tasks():
    ...     return [spacecl.Task("sign", (x, (x[:, 0] > 0).long()), test=(x, (x[:, 0] > 0).long()))]
    >>> register("signs", tasks, recipe={"epochs": 3})
    >>> [task.name for task in spacecl.benchmarks.load("signs")]
    ['sign']
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w([\w.-]*\w)?", name) or name.endswith(".py") or name in BENCHMARKS:
        what = "is a benchmark of spacecl" if name in BENCHMARKS else "is not a name of letters, digits, -, _ and ."
        raise ConfigError(f"register(): {show(name)} {what}. Give the benchmark another name.")
    if not callable(tasks):
        raise ConfigError(f"register({name!r}): tasks={show(tasks)} must be a function that returns a list of spacecl.Task.")
    if network is not None and not isinstance(network, str) and not callable(network):
        raise ConfigError(f"register({name!r}): network={show(network)} must be a function that returns a model, or a name.")
    train = asdict(recipe) if is_dataclass(recipe) and not isinstance(recipe, type) else recipe or {}
    if not isinstance(train, Mapping):
        raise ConfigError(f"register({name!r}): recipe={show(recipe)} must be a dictionary or a spacecl.Recipe.")
    file = get_executing_file()
    _registered.pop((file, name), None)  # so that the latest comes last
    _registered[file, name] = RegisteredBenchmark(name, tasks, network, dict(train), file)


def split_file(name: str) -> tuple[str, str]:
    """The file in the name of a benchmark, and what follows its colon.

    >>> split_file("a/b.py:pairs"), split_file("a/b.py"), split_file("p-mnist")
    (('a/b.py', 'pairs'), ('a/b.py', ''), ('p-mnist', ''))
    """
    file, _, rest = name.partition(".py:")
    return (f"{file}.py", rest) if rest else (name, "")


def find_registered(name: str) -> RegisteredBenchmark | None:
    """The benchmark that was registered last under a name in this process, whatever file did it."""
    found = [benchmark for (_, registered), benchmark in _registered.items() if registered == name]
    return found[-1] if found else None


def load_registered(name: str) -> RegisteredBenchmark | None:
    """Execute the file in the name of a benchmark and return the one that it registers; None if it is a function instead.

    A file that registers a single benchmark needs no name after it.
    """
    file, rest = split_file(name)
    run_file(file)
    names = list_registered(file)
    rest = names[0] if not rest and len(names) == 1 else rest
    return _registered.get((Path(file).absolute(), rest))


def list_registered(file: str) -> list[str]:
    """The names of the benchmarks that a file has registered."""
    path = Path(file).absolute()
    return [name for registered_by, name in _registered if registered_by == path]


def load_network(name: str, label: str) -> Callable[[], Any]:
    """Load the function that makes a network: that of a registered benchmark, or any by `file.py:function`."""
    file, rest = split_file(name)
    if rest and Path(file).is_file():
        run_file(file, f"{label}: {file}")
        benchmark = _registered.get((Path(file).absolute(), rest))
        if benchmark is not None and callable(benchmark.network):
            return benchmark.network
    return load_function(name, label)
