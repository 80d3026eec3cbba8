"""Which convolutions write out of bounds or compute something wrong, for every instruction set that oneDNN can be held to.

    python bench/convolutions.py [--cases 600] [--seconds 1800]

Every case runs forward, the gradient of the input, and that of weight and bias, in subprocesses. bench/fence.c, compiled with
`cc`, makes every tensor and work space end at inaccessible memory, so that no write outside is missed; without a compiler
glibc's heap checks take its place, and find only what they happen to meet. Results are compared with float64. A case that ends
its process is named, and the others go on after it. Prints Markdown; exit code 1 if anything goes wrong inside of
`spacecl.structure.memory_format.protect_gradients`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SETS = {  # what oneDNN is held to -> what torch's own kernels are
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
PASSES = ("forward", "gradient of input", "gradient of weight")
PORTION = 250  # cases of one process: the kernel bounds the number of fences in one
PATIENCE = 60  # seconds without a word before a process counts as hanging


@dataclass(frozen=True)
class Case:
    dims: int = 2
    batch: int = 4
    inputs: int = 8
    outputs: int = 8
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    side: int = 8
    transposed: bool = False
    channels_last: bool = True
    dtype: str = "float32"
    protected: bool = False

    @property
    def faulty(self) -> bool:
        """What is known to go wrong: with several threads it hangs, and every hang takes time to see."""
        strided = self.kernel == 1 and self.stride > 1 and self.dims == 2 and self.groups == 1 and not self.transposed
        return strided and self.channels_last and self.inputs < 16 and not self.protected

    @property
    def valid(self) -> bool:
        fits = self.transposed or self.side + 2 * self.padding > self.dilation * (self.kernel - 1)
        layout = not (self.dims == 1 and self.channels_last)  # 1-d tensors have one memory format
        return fits and layout and self.inputs % self.groups == 0 and self.outputs % self.groups == 0


def all_cases(count: int) -> list[Case]:
    """Strided 1 x 1 convolutions of widths around whole vectors, small 3-d inputs, then random cases of every kind."""
    found = [
        Case(inputs=inputs, outputs=outputs, stride=stride, side=side, batch=batch, protected=protected)
        for inputs in [*range(1, 18), 23, 24, 31, 32, 33, 40]
        for outputs in (1, 7, 8, 16, 20, 32)
        for stride, side, batch in ((2, 8, 10), (2, 32, 4), (2, 64, 2))
        for protected in (False, True)
    ]
    found += [
        Case(3, 1, 16, 16, kernel, stride, padding, side=side, channels_last=last, protected=protected)
        for kernel in (5, 6, 7)
        for stride, padding in ((2, 2), (2, 3), (3, 3))
        for side in (4, 5, 6, 7, 8)
        for last in (False, True)
        for protected in (False, True)
    ]
    whole = len(found)
    draw = random.Random(0)
    widths = [*range(1, 41), 8, 16, 24, 32, 40, 16, 32]
    while len(found) < count + whole:
        depthwise, dims = draw.random() < 0.15, draw.choice([1, 2, 2, 2, 2, 3])
        inputs, outputs = draw.choice(widths), draw.choice(widths)
        groups = draw.choice([1, 1, 1, 2, 4])
        case = Case(
            dims=dims,
            batch=draw.choice([1, 1, 2, 4, 10, 20]),
            inputs=inputs,
            outputs=inputs * draw.choice([1, 1, 2]) if depthwise else outputs,
            kernel=draw.choice([1, 1, 1, 2, 3, 3, 4, 5, 6, 7]),
            stride=draw.choice([1, 2, 2, 3]),
            padding=draw.choice([0, 0, 1, 2, 3]),
            dilation=draw.choice([1, 1, 1, 2]),
            groups=inputs if depthwise else groups,
            side=draw.choice([4, 6, 7, 8, 9, 12]) if dims == 3 else draw.choice([7, 8, 9, 12, 16, 24, 32, 33, 48]),
            transposed=draw.random() < 0.08,
            channels_last=dims > 1 and draw.random() < 0.6,
            dtype="bfloat16" if draw.random() < 0.08 else "float32",
        )
        if case.valid:
            found.append(case)
    return list(dict.fromkeys(found))


# -- in the subprocess -----------------------------------------------------------------------------------------------------


def run_cases(path: Path, first: int) -> None:
    """Run cases of a file from a number on, and tell of each pass as it begins and ends, between oneDNN's own lines."""
    import torch

    from spacecl.structure.memory_format import protect_gradients

    fence = ctypes.CDLL(None) if os.environ.get("FENCE") else None
    for number, line in enumerate(path.read_text().splitlines()):
        if not first <= number < first + PORTION:
            continue
        case = Case(**json.loads(line))
        generator = torch.Generator().manual_seed(number)
        side = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
        layout = side[case.dims] if case.channels_last else torch.contiguous_format
        shape = (case.inputs, case.outputs // case.groups) if case.transposed else (case.outputs, case.inputs // case.groups)
        exact = [
            torch.randn(size, generator=generator, dtype=torch.float64)
            for size in (
                (case.batch, case.inputs, *[case.side] * case.dims),
                (*shape, *[case.kernel] * case.dims),
                (case.outputs,),
            )
        ]
        dtype = getattr(torch, case.dtype)
        exact = [tensor.to(dtype).double() for tensor in exact]  # so that rounding of what is given does not count
        expected, results = None, {}
        for kind in PASSES:
            print(json.dumps({"begin": number, "pass": kind}), flush=True)
            if fence:
                fence.fence_arm()
            given = [tensor.to(dtype) for tensor in exact]
            given[:2] = [tensor.to(memory_format=layout) for tensor in given[:2]]
            wanted = {"forward": (), "gradient of input": (0,), "gradient of weight": (1, 2)}[kind]
            for index in wanted:
                given[index].requires_grad_()
            layer = torch.nn.Conv2d(1, 1, 1) if case.dims < 3 else torch.nn.Conv3d(1, 1, 7)
            if case.protected:
                with protect_gradients(layer):
                    result = convolve(case, *given)
            else:
                result = convolve(case, *given)
            if kind == "forward":
                found = [result]
            else:
                found = list(torch.autograd.grad(result, [given[i] for i in wanted], expected[1].to(dtype)))
            copies = [tensor.double().contiguous() for tensor in found]
            del given, result, found
            if fence:
                fence.fence_disarm()
            if expected is None:
                leaves = [tensor.requires_grad_() for tensor in exact]
                right = convolve(case, *leaves)
                seed = torch.randn(right.shape, generator=generator, dtype=torch.float64).to(dtype).double()
                gradients = torch.autograd.grad(right, leaves, seed)
                expected = (right.detach(), seed)
                results = {"forward": [right.detach()], PASSES[1]: gradients[:1], PASSES[2]: gradients[1:]}
            error = max(
                float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) if a.isfinite().all() else float("inf")
                for a, b in zip(copies, results[kind])
            )
            copies.clear()
            row = {"end": number, "error": error}
            if fence:
                row |= {"reads": fence.fence_reads(), "writes": fence.fence_writes()}
            print(json.dumps(row), flush=True)


def convolve(case: Case, x, weight, bias):
    """The convolution of a case."""
    import torch.nn.functional as F

    options = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:
        if case.stride > 1:
            options["output_padding"] = case.stride - 1
        return getattr(F, f"conv_transpose{case.dims}d")(x, weight, bias, **options)
    return getattr(F, f"conv{case.dims}d")(x, weight, bias, **options)


# -- in the parent ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What one pass of one case came to."""

    case: Case
    kind: str
    kernel: str
    verdict: str  # "" if right


def run_set(isa: str, aten: str, threads: int, cases: list[Case], fence: Path | None, deadline: float) -> tuple[str, list[Row]]:
    """All cases with one instruction set; returns what oneDNN says that it uses, and a row for every pass."""
    here = Path(__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "LD_PRELOAD"))}
    environment |= {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": str(threads), "ONEDNN_VERBOSE": "profile_create"}
    environment |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4", "PYTHONPATH": str(here / "src"), "PYTHONWARNINGS": "ignore"}
    environment |= {"ATEN_CPU_CAPABILITY": aten} if aten else {}
    if fence:
        environment |= {"LD_PRELOAD": str(fence), "FENCE": "1"}
    else:
        environment |= {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    rows: list[Row] = []
    name, first = "no oneDNN", 0
    with tempfile.TemporaryDirectory() as folder:
        listed, output = Path(folder) / "cases", Path(folder) / "output"
        listed.write_text("\n".join(json.dumps(asdict(case)) for case in cases))
        while first < len(cases) and time.monotonic() < deadline:
            with output.open("w") as file:
                command = [sys.executable, __file__, "--from", str(first), "--listed", str(listed)]
                child = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.PIPE, text=True)
                ended = wait(child, output, deadline)
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
            if open_pass and ended != "deadline":
                rows.append(Row(cases[open_pass[0]], open_pass[1], kernel or "torch", ended))
                first = open_pass[0] + 1
            elif ended not in ("", "deadline"):
                raise SystemExit(f"The cases cannot run with {isa}: {ended}\n{child.stderr.read() if child.stderr else ''}")
    return name, rows


def wait(child: subprocess.Popen[str], output: Path, deadline: float) -> str:
    """How a subprocess ended: "" if well; one that says nothing for long, or is late, is ended."""
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
    made = folder / "fence.so"
    source = Path(__file__).with_name("fence.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


def spans(numbers: set[int]) -> str:
    """Numbers as ranges: {1, 2, 3, 5} is "1-3, 5"."""
    ordered, parts = sorted(numbers), []
    for number in ordered:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def describe(rows: list[Row]) -> str:
    """The conditions under which rows of one kind occur: the values of every property."""
    cases = [row.case for row in rows]
    words = [
        f"{name} {spans({getattr(case, name) for case in cases})}"
        for name in ("dims", "kernel", "stride", "inputs", "outputs", "groups", "padding", "dilation", "side", "batch")
    ]
    formats = {"channels-last" if case.channels_last else "contiguous" for case in cases}
    kinds = {"transposed" for case in cases if case.transposed} | {case.dtype for case in cases} | formats
    return "; ".join([*words, *sorted(kinds)])


def sweep(
    sets: dict[str, str], cases: list[Case], fence: Path | None, deadline: float
) -> Iterator[tuple[str, int, str, list[Row]]]:
    """The rows of every set that is another on this CPU, with one thread and, for half of the cases, with two."""
    seen = set()
    for isa, aten in sets.items():
        name, _ = run_set(isa, aten, 1, cases[:1], fence, deadline)
        if name in seen:
            continue
        seen.add(name)
        faulty = [case for case in cases if case.faulty]
        half = [*[case for case in cases if not case.faulty][::2], *faulty[:: len(faulty) // 6 + 1]]
        for threads, chosen in ((1, cases), (2, half)):
            yield isa, threads, name, run_set(isa, aten, threads, chosen, fence, deadline)[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=600, help="random cases beside those that are known to go wrong")
    parser.add_argument("--seconds", type=float, default=1800, help="stop then at the latest")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS), help="instruction sets")
    parser.add_argument("--heap", action="store_true", help="glibc's heap checks instead of fences")
    parser.add_argument("--from", dest="first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--listed", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.listed:
        run_cases(options.listed, options.first)
        return 0
    deadline, cases = time.monotonic() + options.seconds, all_cases(options.cases)
    chosen = {isa: SETS[isa] for isa in options.sets}
    faults: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    sets: dict[tuple[str, str, str, str], Counter[str]] = defaultdict(Counter)
    protected_faults = 0
    with tempfile.TemporaryDirectory() as folder:
        fence = None if options.heap else build_fence(Path(folder))
        print(f"{len(cases)} cases, checked by {'fences' if fence else 'heap checks of glibc'} and against float64.\n")
        print(
            "| held to | oneDNN uses | threads | passes | out of bounds | wrong, hung or crashed | of these protected |\n"
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
