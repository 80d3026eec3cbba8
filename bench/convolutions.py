"""Find convolutions that write out of bounds or compute wrong values, for every instruction set that oneDNN can be limited to.

    python bench/convolutions.py [--cases 600] [--seconds 1800]

Every case runs forward, the gradient of the input, and that of weight and bias, in subprocesses. bench/fence.c, compiled with
`cc`, places every tensor and work space before inaccessible memory, so that every write outside is detected. Without a compiler
glibc's heap checks are used, which detect less. Results are compared with float64. A case that ends its process is
reported, and the others run after it. Prints Markdown; exit code 1 if anything goes wrong within
`spacecl.structure.memory_format.protect_gradients`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from convolution_cases import PASSES, Case, make_cases, run_cases

SETS = {  # the limit for oneDNN -> the one for torch's own kernels
    "SSE41": "default",
    "AVX": "default",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx2",
    "AVX2_VNNI_2": "avx2",
    "AVX512_CORE": "avx512",
    "AVX512_CORE_VNNI": "avx512",
    "AVX512_CORE_BF16": "avx512",
    "AVX512_CORE_FP16": "avx512",
    "AVX512_CORE_AMX": "avx512",
    "DEFAULT": "",
}
PATIENCE = 60  # seconds without output before a process counts as hanging


@dataclass(frozen=True)
class Row:
    """The verdict on one pass of one case."""

    case: Case
    kind: str
    kernel: str
    verdict: str  # "" if it is right


def run_set(isa: str, aten: str, threads: int, cases: list[Case], fence: Path | None, deadline: float) -> tuple[str, list[Row]]:
    """Run all cases with one instruction set; return the one that oneDNN reports, and a row for every pass."""
    root = Path(__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "LD_PRELOAD"))}
    environment |= {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": str(threads), "ONEDNN_VERBOSE": "profile_create"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4", "PYTHONPATH": str(root / "src"), "PYTHONWARNINGS": "ignore"}
    environment |= {"ATEN_CPU_CAPABILITY": aten} if aten else {}
    if fence:
        environment |= {"LD_PRELOAD": str(fence), "FENCE": "1"}
    else:
        environment |= {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    rows: list[Row] = []
    name, first = "no oneDNN", 0
    with tempfile.TemporaryDirectory() as folder:
        case_file, output = Path(folder) / "cases", Path(folder) / "output"
        case_file.write_text("\n".join(json.dumps(asdict(case)) for case in cases))
        while first < len(cases) and time.monotonic() < deadline:
            with output.open("w") as file:
                command = [sys.executable, __file__, "--from", str(first), "--listed", str(case_file)]
                child = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.PIPE, text=True)
                end = wait(child, output, deadline)
            open_pass = None
            kernel = ""
            for line in output.read_text().splitlines():
                if line.startswith("onednn_verbose"):
                    fields = line.split(",")
                    if ",info,cpu,isa:" in line:
                        name = line.split("isa:")[1]
                    elif "convolution" in fields or "deconvolution" in fields:
                        kernel = fields[fields.index("deconvolution" if "deconvolution" in fields else "convolution") + 1]
                    continue
                row = json.loads(line)
                if "begin" in row:
                    open_pass, kernel = (row["begin"], row["pass"]), ""
                elif open_pass:
                    case = cases[row["end"]]
                    rows.append(Row(case, open_pass[1], kernel or "torch", judge(case, row)))
                    first, open_pass = row["end"] + (open_pass[1] == PASSES[-1]), None
            if open_pass and end != "deadline":
                rows.append(Row(cases[open_pass[0]], open_pass[1], kernel or "torch", end))
                first = open_pass[0] + 1
            elif end not in ("", "deadline"):
                raise SystemExit(f"The cases cannot run with {isa}: {end}\n{child.stderr.read() if child.stderr else ''}")
    return name, rows


def wait(child: subprocess.Popen[str], output: Path, deadline: float) -> str:
    """Wait for a subprocess and return how it ended, "" if well; kill one that prints nothing for long, or is too late."""
    size, since = -1, time.monotonic()
    while child.poll() is None:
        time.sleep(0.05)
        now = time.monotonic()
        if output.stat().st_size != size:
            size, since = output.stat().st_size, now
        if now - since > PATIENCE or now > deadline:
            child.kill()
            child.wait()
            return "hangs" if now - since > PATIENCE else "deadline"
    return (
        f"ends by signal {-child.returncode}"
        if child.returncode < 0
        else f"exit code {child.returncode}" * bool(child.returncode)
    )


def judge(case: Case, row: dict[str, float]) -> str:
    if row.get("writes"):
        return "writes out of bounds"
    if row["error"] > (0.05 if case.dtype == "bfloat16" else 1e-3):
        return "wrong values"
    return "reads out of bounds" if row.get("reads") else ""


def build_fence(folder: Path) -> Path | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.system() != "Linux" or platform.machine() != "x86_64":
        return None
    library = folder / "fence.so"
    source = Path(__file__).with_name("fence.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def format_ranges(numbers: set[int]) -> str:
    """Format numbers as ranges: {1, 2, 3, 5} becomes "1-3, 5"."""
    ordered, parts = sorted(numbers), []
    for number in ordered:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def describe(rows: list[Row]) -> str:
    """Return the conditions under which rows of one kind occur: the values of every property."""
    cases = [row.case for row in rows]
    words = [
        f"{name} {format_ranges({getattr(case, name) for case in cases})}"
        for name in ("dims", "kernel", "stride", "inputs", "outputs", "groups", "padding", "dilation", "side", "batch")
    ]
    formats = {"channels-last" if case.channels_last else "contiguous" for case in cases}
    kinds = {"transposed" for case in cases if case.transposed} | {case.dtype for case in cases} | formats
    return "; ".join([*words, *sorted(kinds)])


def sweep(
    sets: dict[str, str], cases: list[Case], fence: Path | None, deadline: float
) -> Iterator[tuple[str, int, str, list[Row]]]:
    """Yield the rows of every set that differs on this CPU, with one thread and, for half of the cases, with two."""
    names = set()
    for isa, aten in sets.items():
        name, _ = run_set(isa, aten, 1, cases[:1], fence, deadline)
        if name in names:
            continue
        names.add(name)
        faulty = [case for case in cases if case.faulty]
        half = [*[case for case in cases if not case.faulty][::2], *faulty[:: len(faulty) // 6 + 1]]
        for threads, chosen in ((1, cases), (2, half)):
            yield isa, threads, name, run_set(isa, aten, threads, chosen, fence, deadline)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=600, help="random cases besides those that are known to fail")
    parser.add_argument("--seconds", type=float, default=1800, help="time limit")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS), help="instruction sets")
    parser.add_argument("--heap", action="store_true", help="glibc's heap checks instead of fences")
    parser.add_argument("--from", dest="first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--listed", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.listed:
        run_cases(options.listed, options.first)
        return 0
    deadline, cases = time.monotonic() + options.seconds, make_cases(options.cases)
    chosen = {isa: SETS[isa] for isa in options.sets}
    faults: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    sets: dict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
    protected_faults = 0
    with tempfile.TemporaryDirectory() as folder:
        fence = None if options.heap else build_fence(Path(folder))
        print(f"{len(cases)} cases, checked by {'fences' if fence else 'heap checks of glibc'} and against float64.\n")
        print(
            "| limit | oneDNN uses | threads | passes | out of bounds | wrong, hung or crashed | of these protected |\n"
            "|---|---|---|---|---|---|---|"
        )
        for isa, threads, name, rows in sweep(chosen, cases, fence, deadline):
            bad = [row for row in rows if row.verdict and row.verdict != "reads out of bounds"]
            guarded = [row for row in bad if row.case.protected]
            protected_faults += len(guarded)
            out = sum("writes" in row.verdict for row in bad)
            print(f"| {isa} | {name} | {threads} | {len(rows)} | {out} | {len(bad) - out} | {len(guarded)} |", flush=True)
            for row in rows:
                if row.verdict:
                    key = (row.verdict, row.kind, row.kernel, "protected" if row.case.protected else "")
                    faults[key].append(row)
                    sets[key][f"{isa}"] += 1
    print("\n| what | pass | kernel | sets | passes | where |\n|---|---|---|---|---|---|")
    for key, rows in sorted(faults.items()):
        verdict, kind, kernel, protected = key
        where = describe(rows) + (f"; {protected}" if protected else "")
        print(f"| {verdict} | {kind} | {kernel} | {', '.join(sets[key])} | {len(rows)} | {where} |")
    if time.monotonic() > deadline:
        print("\nStopped by --seconds before all cases had run.")
    return 1 if protected_faults else 0


if __name__ == "__main__":
    sys.exit(main())
