"""The report: from the results of runs to one page, and to figures and tables as files."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import disk
from .arms import BATCH, Arm, Result, energy, how_known, judged, numbers, relative_energy, remarks, table, title
from .figures import Figure, Panel, Series, check_installed, printable, save
from .html import Section, page


def write(folder: str | os.PathLike[str], arms: Sequence[Arm], left: Sequence[str] = ()) -> Path:
    """Write report.html into a folder, and beside it report/ with every figure and table as files, and no older ones."""
    check_installed()
    top = Path(folder)
    files = top / "report"
    disk.make_folder(files)
    sections = compose(arms, left)
    written = {file for section in sections for figure in section.figures for file in save(figure, files)}
    for section in sections:
        for name, titles, rows in section.tables:
            plain = {"table": numbers, "costs": _costs_plain}.get(name)
            for ending, text in (
                ("md", _as_markdown(titles, rows)),
                ("csv", _as_csv(*(plain(arms) if plain is not None else (titles, rows)))),
            ):
                disk.write_file(files / f"{name}.{ending}", text.encode())
                written.add(files / f"{name}.{ending}")
    ours = (file for file in files.iterdir() if file.suffix in (".svg", ".png", ".csv", ".md"))
    disk.remove(*(file for file in ours if file not in written))  # of arms that are no more
    disk.write_file(top / "report.html", page(title(arms), sections).encode())
    return top / "report.html"


def compose(arms: Sequence[Arm], left: Sequence[str] = ()) -> list[Section]:
    """What the page says, in its order."""
    ours = sorted(arms, key=lambda arm: arm.method != "space")  # so that its colours are the same on every page
    looks = {arm.label: number for number, arm in enumerate(ours)}
    spaces = [arm for arm in arms if any(task["spectrum"] for task in arm.results[0]["tasks"])]
    notes = [remarks(arms), *([f"Left out: {', '.join(left)}."] if left else [])]
    data = judged(arms).capitalize()
    sections = [
        Section("table", "Comparison", notes, [_frontier(ours)], [("table", *table(arms))]),
        _with_tables(
            Section(
                "accuracy",
                "Accuracy as tasks are learned",
                [f"{data} accuracy, mean over all tasks learned so far (the paper's Figure 4)."],
                [_accuracy(arms, looks)],
            )
        ),
        _with_tables(
            Section(
                "forgetting",
                "What becomes of the first task",
                [f"{data} accuracy of the first task as more are added. A method that does not forget draws a level line."],
                [_first_task(arms, looks)],
            )
        ),
        _with_tables(_filters_section(arms, looks)),
        _energy_section(arms, looks),
    ]
    if spaces:
        sections += [_with_tables(_shares_section(spaces)), _spectrum_section(spaces)]
    return [*sections, _commands(arms)]


def _with_tables(section: Section) -> Section:
    """A section with the values of its figures as tables, for those who cannot point at marks, and for programs."""
    tables = [(figure.name, *_values(figure)) for figure in section.figures]
    return replace(section, tables=[*section.tables, *tables], folded_tables=[*section.folded_tables, *(t[0] for t in tables)])


def _values(figure: Figure) -> tuple[list[str], list[list[str]]]:
    most = max((len(series.x) for panel in figure.panels for series in panel.series), default=0)
    rows = []
    for panel in figure.panels:
        for series in panel.series:
            values = [f"{100 * y:.2f} %" if panel.percent else f"{y:.4g}" for y in series.y]
            rows.append([series.label, *([panel.title] if panel.title else []), *values, *[""] * (most - len(values))])
    titles = ["series", *(["layer"] if any(panel.title for panel in figure.panels) else [])]
    return [*titles, *(str(number) for number in range(1, most + 1))], rows


def _series(
    arm: Arm, looks: dict[str, int], values: Sequence[float], tips: Sequence[str], spread: Sequence[float] = ()
) -> Series:
    return Series(arm.label, range(1, len(values) + 1), values, tips, looks[arm.label], spread=spread)


def _learned(arm: Arm, looks: dict[str, int], what: str, value: Callable[[Result, int], float]) -> Series:
    """A share that changes as tasks are learned: its mean over seeds, and their spread."""
    values, spread = arm.over_tasks(value), arm.spread_over_tasks(value)
    more = [f" ± {part:.2%}" for part in spread] or [""] * len(values)
    tips = [f"{arm.label}, {what} after {n}: {v:.2%}{text}" for n, (v, text) in enumerate(zip(values, more), 1)]
    return _series(arm, looks, values, tips, spread)


def _frontier(arms: Sequence[Arm]) -> Figure:
    """Accuracy against size: a point for each arm, a line through those of one family."""
    families: dict[str, list[Arm]] = {}
    for arm in arms:
        families.setdefault(arm.family, []).append(arm)
    series = []
    for number, (family, members) in enumerate(families.items()):
        members = sorted(members, key=lambda arm: arm.mean(_size))
        tips = [f"{arm.label}: {arm.mean(_accuracy_of):.2%} with {arm.mean(_size):.3f} of the network" for arm in members]
        sizes, accuracies = [arm.mean(_size) for arm in members], [arm.mean(_accuracy_of) for arm in members]
        series.append(Series(family, sizes, accuracies, tips, number, "line" if len(members) > 1 else "points"))
    panel = Panel("", "network size", "accuracy", series, percent=True, logarithmic=True)
    return Figure("frontier", "Accuracy against network size", [panel])


def _size(result: Result) -> float:
    return result["size"]


def _accuracy_of(result: Result) -> float:
    return result["average_accuracy"]


def _accuracy(arms: Sequence[Arm], looks: dict[str, int]) -> Figure:
    def so_far(result: Result, number: int) -> float:
        return _mean([value for value in result["accuracy_matrix"][number] if value is not None])

    series = [_learned(arm, looks, "all tasks", so_far) for arm in arms]
    panel = Panel("", "tasks learned", "accuracy", series, whole=True, percent=True)
    return Figure("accuracy", "Accuracy over incrementally learned tasks", [panel])


def _first_task(arms: Sequence[Arm], looks: dict[str, int]) -> Figure:
    series = [_learned(arm, looks, "the first task", lambda result, n: result["accuracy_matrix"][n][0]) for arm in arms]
    panel = Panel("", "tasks learned", "accuracy", series, whole=True, percent=True)
    return Figure("first-task", "Accuracy of the first task as tasks are added", [panel])


def _filters_section(arms: Sequence[Arm], looks: dict[str, int]) -> Section:
    narrow = [arm for arm in arms if arm.method in ("space", "hat")]
    notes = [
        "Output channels of each layer that the tasks so far use together; the dotted line is all that there are. "
        "Methods that do not narrow layers use all of them."
    ]
    if not narrow:
        return Section("filters", "Filters per layer and task", [*notes, "No method here narrows layers."])
    ablated = any(arm.method == "space" and not arm.results[0]["config"]["options"]["projection"] for arm in arms)
    if not ablated and any(arm.method == "space" for arm in narrow):
        notes.append(
            "Dashed: what SPACE would hold if it had not subtracted what the core explains, counted on the same activations, "
            "task by task (spacecl compare --preset projection learns the tasks both ways)."
        )
    panels = []
    for layers in _tied(narrow):
        layer, series, full = layers[0], [], set()
        for arm in narrow:
            widths = arm.results[0]["network"]["widths"]
            if layer not in widths:  # another network
                continue
            full.add(widths[layer])
            values = _by_task(arm, lambda task, layer=layer: task["used"][layer])
            tips = [f"{arm.label}, {layer}, {task}: {value:g} filters" for task, value in zip(arm.tasks, values)]
            series.append(_series(arm, looks, values, tips))
            if not ablated and arm.method == "space" and layer in _analysed_layers(arm):
                values = _by_task(arm, lambda task, layer=layer: _plain(task["spectrum"][layer]))
                label = f"{arm.label}, not subtracted"
                tips = [f"{label}, {layer}, {task}: {value:g} filters" for task, value in zip(arm.tasks, values)]
                series.append(Series(label, range(1, len(values) + 1), values, tips, looks[arm.label], dashed=True))
        levels = [(width, f"all {width}") for width in sorted(full)]
        panels.append(Panel(_names(layers), "task", "filters", series, True, levels, floor=0))
    figures = [Figure("filters", "Filters per layer and task", panels)] if panels else []
    return Section("filters", "Filters per layer and task", notes, figures)


def _by_task(arm: Arm, value: Callable[..., float]) -> list[float]:
    """A value of every task's entry in the results, averaged over seeds."""
    return arm.over_tasks(lambda result, n: value(result["tasks"][n]))


def _plain(seen: Result) -> int:
    """The filters that a layer would hold after a task if the core's share had not been subtracted."""
    return seen["core"] + seen["new_without_projection"]


def _tied(arms: Sequence[Arm]) -> list[list[str]]:
    """Layers whose widths are the same everywhere, together; layers that no task narrows are left out."""
    results = [result for arm in arms for result in arm.results]
    found: dict[str, list[str]] = {}
    for layer in dict.fromkeys(layer for result in results for layer in result["network"]["widths"]):
        series = [[task["used"].get(layer) for task in result["tasks"]] for result in results]
        full = [result["network"]["widths"].get(layer) for result in results]
        if any(width != most for widths, most in zip(series, full) for width in widths):
            found.setdefault(str(series), []).append(layer)
    return list(found.values())


def _energy_section(arms: Sequence[Arm], looks: dict[str, int]) -> Section:
    how = how_known(arms)
    series = []
    for arm in arms:
        values = arm.over_tasks(lambda result, n: relative_energy(result, n, how))
        joules = arm.over_tasks(lambda result, n: energy(result, n, how=how))
        tips = [
            f"{arm.label}, {task}: {value:.3f} of STL's, {1e6 * joule:.3g} µJ ({how})"
            for task, value, joule in zip(arm.tasks, values, joules)
        ]
        series.append(_series(arm, looks, values, tips))
    panel = Panel("", "task", "relative to STL", series, True, floor=0)
    notes = [
        f"Energy of one inference at batch {BATCH}, {how}, over that of the full network, which is what STL runs. SPACE and "
        "HAT run as networks that are narrowed for real; methods with masks of single weights (PackNet) run the full network "
        "and are charged for it; masks are applied when a task is loaded and not counted.",
        "The table has what each task's network costs, averaged over tasks and seeds: parameters, multiply-adds, bytes moved "
        "and peak memory are counted; latency is measured (median and quartiles of many single inferences) on "
        f"{_machines(arms)}; energy as labelled.",
    ]
    return Section(
        "energy",
        "What an inference costs",
        notes,
        [Figure("energy", f"Inference energy per task, {how}, relative to STL", [panel])],
        [("costs", *_costs(arms)), ("costs-by-task", *_costs_by_task(arms))],
        folded_tables=["costs-by-task"],
    )


_COSTS: list[tuple[str, Callable[[Result], float], float, str]] = [  # a title, a value, its unit, how it is written
    ("parameters", lambda c: c["parameters"], 1, ",.0f"),
    ("multiply-adds", lambda c: c["multiply_adds"], 1, ",.0f"),
    ("weights read, kB", lambda c: c["traffic"]["weights"], 1e3, ",.1f"),
    ("activations moved, kB", lambda c: c["traffic"]["activations"], 1e3, ",.1f"),
    ("peak memory at batch 1, kB", lambda c: c["peak_memory"]["1"], 1e3, ",.1f"),
    ("peak memory at batch 64, kB", lambda c: c["peak_memory"]["64"], 1e3, ",.1f"),
    ("energy at batch 1, µJ (modelled)", lambda c: c["energy_modelled"]["1"], 1e-6, ".4g"),
    ("energy at batch 64, µJ (modelled)", lambda c: c["energy_modelled"]["64"], 1e-6, ".4g"),
    ("latency at batch 1, ms (measured)", lambda c: c["measured"]["latency"]["1"]["median"], 1e-3, ".3g"),
    ("lower quartile at 1", lambda c: c["measured"]["latency"]["1"]["low"], 1e-3, ".3g"),
    ("upper quartile at 1", lambda c: c["measured"]["latency"]["1"]["high"], 1e-3, ".3g"),
    ("latency at batch 64, ms (measured)", lambda c: c["measured"]["latency"]["64"]["median"], 1e-3, ".3g"),
    ("lower quartile at 64", lambda c: c["measured"]["latency"]["64"]["low"], 1e-3, ".3g"),
    ("upper quartile at 64", lambda c: c["measured"]["latency"]["64"]["high"], 1e-3, ".3g"),
    ("energy at batch 1, µJ (measured)", lambda c: c["measured"]["energy"]["1"], 1e-6, ".4g"),
    ("energy at batch 64, µJ (measured)", lambda c: c["measured"]["energy"]["64"], 1e-6, ".4g"),
]


def _machines(arms: Sequence[Arm]) -> str:
    costs = [task["costs"]["network"].get("measured") for arm in arms for result in arm.results for task in result["tasks"]]
    found = sorted({f"{cost['machine']}, {cost['threads']} threads" for cost in costs if cost})
    return " and ".join(found) or "no machine yet (spacecl compare --resume --out ... does)"


def _priced(arms: Sequence[Arm]) -> list[tuple[str, list[Result]]]:
    """The networks of every arm, of all tasks and seeds, and the full network in their place."""
    tasks = {arm.label: [task for result in arm.results for task in result["tasks"]] for arm in arms}
    found = [(label, [task["costs"]["network"] for task in entries]) for label, entries in tasks.items()]
    return [*found, ("full network", [task["costs"]["dense"] for entries in tasks.values() for task in entries])]


def _costs(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    titles = [title for title, *_ in _COSTS]
    return ["method", *titles], [[label, *_cost_row(costs)] for label, costs in _priced(arms)]


def _costs_plain(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    """The same for programs: plain numbers, nothing where nothing was measured."""
    titles = [title for title, *_ in _COSTS]
    return ["method", *titles], [[label, *(_cost(c, v, u, "r") for _, v, u, _ in _COSTS)] for label, c in _priced(arms)]


def _costs_by_task(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [arm.label, task, *_cost_row([result["tasks"][n]["costs"]["network"] for result in arm.results])]
        for arm in arms
        for n, task in enumerate(arm.tasks)
    ]
    return ["method", "task", *(title for title, *_ in _COSTS)], rows


def _cost_row(costs: Sequence[Result]) -> list[str]:
    return [_cost(costs, value, unit, style) for _, value, unit, style in _COSTS]


def _cost(costs: Sequence[Result], value: Callable[[Result], float], unit: float, style: str) -> str:
    """The mean of one kind of cost over some networks; nothing where it was not measured."""
    try:
        mean = _mean([value(cost) for cost in costs]) / unit
    except (KeyError, TypeError):  # no "measured", or no energy in it
        return ""
    return repr(mean) if style == "r" else format(mean, style)


def _shares_section(spaces: Sequence[Arm]) -> Section:
    """Figure S4: what the first task's filters explain of later tasks, and what new ones add."""
    figures = []
    for number, arm in enumerate(spaces):
        panels = []
        for layers in _analysed(arm):
            layer = layers[0]
            core = _by_task(arm, lambda task, layer=layer: task["spectrum"][layer]["first_core"])
            kept = _by_task(arm, lambda task, layer=layer: task["spectrum"][layer]["kept"])
            more = [max(0.0, b - a) for a, b in zip(core, kept)]
            x = range(1, len(core) + 1)
            texts = [
                [f"{layer}, {task}: the first core explains {value:.1%}" for task, value in zip(arm.tasks, core)],
                [f"{layer}, {task}: filters beyond the first core explain {value:.1%}" for task, value in zip(arm.tasks, more)],
            ]
            series = [
                Series("the first task's core", x, core, texts[0], 0, "bar"),
                Series("residual: filters kept beyond it", x, more, texts[1], 1, "bar", base=core),
            ]
            panels.append(Panel(_names(layers), "task", "variance explained", series, True, percent=True, floor=0))
        name = "core-and-residual" if number == 0 else f"core-and-residual-{number + 1}"
        figures.append(Figure(name, f"Variance explained by the first core and by the residual: {arm.label}", panels))
    return Section(
        "core",
        "What the first core explains, and what each task adds",
        [
            "Share of the variance of a layer's activations, when a task has been learned at full width, that the channels of "
            "the first task's network explain, and what all others of the task's network add to it (the paper's Figure S4). "
            "The rest is what the threshold gives up. High first bars mean that the layer's features serve every task."
        ],
        figures,
        folded_figures=[figure.name for figure in figures[1:]],
    )


def _spectrum_section(spaces: Sequence[Arm]) -> Section:
    figures, tables = [], []
    for number, arm in enumerate(spaces):
        result, mark = arm.results[0], "" if number == 0 else f"-{number + 1}"
        names, panels, rows = [task["name"] for task in result["tasks"]], [], []
        thresholds: dict[str, None] = {}
        for layers in _analysed(arm):
            layer, series = layers[0], []
            seen = [task["spectrum"][layer] for task in result["tasks"]]
            for n, (task, entry) in enumerate(zip(names, seen)):
                tips = [
                    f"{layer}, {task}: {count} new filters with the core's {entry['core']} explain {share:.1%}"
                    for count, share in zip(entry["filters"], entry["explained"])
                ]
                series.append(Series(task, entry["filters"], entry["explained"], tips, n))
                needs = {threshold: entry["core"] + count for threshold, count in entry["needed"].items()}
                thresholds |= dict.fromkeys(needs)
                counts = [entry["core"], f"{entry['threshold']:g}", entry["core"] + entry["new"], *needs.values()]
                rows.append([_names(layers), task, *map(str, counts)])
            levels = sorted({(entry["threshold"], f"threshold {entry['threshold']:g}") for entry in seen})
            panel = Panel(
                _names(layers), "new filters", "variance explained", series, False, levels, percent=True, saturating=True
            )
            panels.append(panel)
        figures.append(Figure(f"spectrum{mark}", f"Spectrum per layer: {arm.label}, seed {result['seed']}", panels))
        titles = ["layer", "task", "core", "threshold", "filters", *(f"at {float(threshold):g}" for threshold in thresholds)]
        tables.append((f"thresholds{mark}", titles, rows))
    notes = [
        "How much of the residual's variance the core and so many new filters explain, task by task, for the first seed; the "
        "dotted line is the threshold, and where a curve crosses it is how many filters the task got. The residual is all "
        "channels outside the core.",
        "The table says how many filters a layer would have had after the task with another threshold, all else the same.",
    ]
    return Section(
        "spectrum",
        "What another threshold would have cost",
        notes,
        figures,
        tables,
        folded_figures=[figure.name for figure in figures[1:]],
        folded_tables=[entry[0] for entry in tables],
    )


def _analysed(arm: Arm) -> list[list[str]]:
    """The layers that the analysis saw, those with the same spectra together."""
    found: dict[str, list[str]] = {}
    for layer in _analysed_layers(arm):
        found.setdefault(str([task["spectrum"][layer] for task in arm.results[0]["tasks"]]), []).append(layer)
    return list(found.values())


def _analysed_layers(arm: Arm) -> list[str]:
    tasks = [task for result in arm.results for task in result["tasks"]]
    return [layer for layer in tasks[0]["spectrum"] if all(layer in task["spectrum"] for task in tasks)]


def _commands(arms: Sequence[Arm]) -> Section:
    from ..runs.config import Config
    from ..runs.resolve import to_command

    commands, settings = [], {}
    for arm in arms:
        seeds = [str(result["seed"]) for result in arm.results]
        more = f", and the same with --seed {', '.join(seeds[1:])}" if len(seeds) > 1 else ""
        commands.append((f"{arm.label}: seed {seeds[0]}{more}", to_command(Config.from_json(arm.results[0]["config"]))))
        settings[arm.label] = {key: value for key, value in arm.results[0]["config"].items() if key != "seed"}
    versions = sorted({result["spacecl"] for arm in arms for result in arm.results})
    note = (
        f"Each line makes a run again (spacecl {', '.join(versions)}). spacecl report FOLDER makes this page from the "
        "result.json files of the runs in a folder. Say with --data or $SPACECL_DATA where the data are."
    )
    return Section("commands", "To make it again", [note], commands=commands, settings=settings)


def _names(layers: Sequence[str]) -> str:
    return layers[0] if len(layers) == 1 else f"{layers[0]} + {len(layers) - 1} tied"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _as_csv(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([_as_cell(text) for text in row] for row in (titles, *rows))
    return stream.getvalue()


def _as_cell(text: str) -> str:
    """Text for a cell of a CSV file. A name that spreadsheets would take for a formula gets a quotation mark before it."""
    text = printable(text)
    return f"'{text}" if re.match(r"\s*[=@]|\s*[-+](?![\d.,e%±+ -]*$|inf$|nan$)", text) else text


def _as_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(as_markdown_text, row))} |" for row in (titles, *rows)]
    return "\n".join([lines[0], f"|---{'|---:' * (len(titles) - 1)}|", *lines[1:]]) + "\n"


def as_markdown_text(text: str) -> str:
    """Text for a cell of a Markdown table, shown as it is: no markup, no HTML, no line breaks."""
    return re.sub(r"([\\`*_\[\]<>&|~$])", r"\\\1", " ".join(printable(text).split()))


def as_markdown_code(text: str) -> str:
    """A command for a cell of a Markdown table."""
    text = " ".join(printable(text).split()).replace("|", "\\|")
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks} {text} {marks}" if len(marks) > 1 else f"{marks}{text}{marks}"
