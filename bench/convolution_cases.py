"""The cases of `convolutions.py`, and the subprocess that runs them."""

from __future__ import annotations

import ctypes
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PASSES = ("forward", "gradient of input", "gradient of weight")
PORTION = 250  # cases per process: the kernel limits the number of fences in one


@dataclass(frozen=True)
class Case:
    """One convolution: its shape, and whether `protect_gradients` is used."""

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
        """Whether it is known to fail: with several threads it hangs, and every hang takes time to detect."""
        strided = self.kernel == 1 and self.stride > 1 and self.dims == 2 and self.groups == 1 and not self.transposed
        return strided and self.channels_last and self.inputs < 16 and not self.protected

    @property
    def valid(self) -> bool:
        fits = self.transposed or self.side + 2 * self.padding > self.dilation * (self.kernel - 1)
        layout = not (self.dims == 1 and self.channels_last)  # 1-d tensors have one memory format
        return fits and layout and self.inputs % self.groups == 0 and self.outputs % self.groups == 0


def make_cases(count: int) -> list[Case]:
    """Return strided 1 x 1 convolutions of many widths, 3-d convolutions of small inputs, and random cases of every kind."""
    cases = [
        Case(inputs=inputs, outputs=outputs, stride=stride, side=side, batch=batch, dtype=dtype, protected=protected)
        for inputs in [*range(1, 18), 23, 24, 31, 32, 33, 40]
        for outputs in (1, 7, 8, 16, 20, 32)
        for stride, side, batch in ((2, 8, 10), (2, 32, 4), (2, 64, 2))
        for dtype in ("float32", "bfloat16")
        for protected in (False, True)
    ]
    cases += [
        Case(3, 1, 16, 16, kernel, stride, padding, side=side, channels_last=last, dtype=dtype, protected=protected)
        for kernel in (5, 6, 7)
        for stride, padding in ((2, 2), (2, 3), (3, 3))
        for side in (4, 5, 6, 7, 8)
        for last in (False, True)
        for dtype in ("float32", "bfloat16")
        for protected in (False, True)
    ]
    systematic = len(cases)
    draw = random.Random(0)
    widths = [*range(1, 41), 8, 16, 24, 32, 40, 16, 32]
    while len(cases) < count + systematic:
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
            cases.append(case)
    return list(dict.fromkeys(cases))


def run_cases(path: Path, first: int) -> None:
    """Run the cases of a file from a number on; print a line when a pass begins and ends, between the lines of oneDNN."""
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
        exact = [tensor.to(dtype).double() for tensor in exact]  # so that the rounding of the inputs does not count
        expected, results = None, {}
        for kind in PASSES:
            print(json.dumps({"begin": number, "pass": kind}), flush=True)
            if fence:
                fence.fence_arm()
            tensors = [tensor.to(dtype) for tensor in exact]
            tensors[:2] = [tensor.to(memory_format=layout) for tensor in tensors[:2]]
            leaf_indices = {"forward": (), "gradient of input": (0,), "gradient of weight": (1, 2)}[kind]
            for index in leaf_indices:
                tensors[index].requires_grad_()
            layer = torch.nn.Conv2d(1, 1, 1) if case.dims < 3 else torch.nn.Conv3d(1, 1, 7)
            if case.protected:
                with protect_gradients(layer):
                    result = convolve(case, *tensors)
            else:
                result = convolve(case, *tensors)
            if kind == "forward":
                outputs = [result]
            else:
                outputs = list(torch.autograd.grad(result, [tensors[i] for i in leaf_indices], expected[1].to(dtype)))
            copies = [tensor.double().contiguous() for tensor in outputs]
            del tensors, result, outputs
            if fence:
                fence.fence_disarm()
            if expected is None:
                leaves = [tensor.requires_grad_() for tensor in exact]
                reference = convolve(case, *leaves)
                seed = torch.randn(reference.shape, generator=generator, dtype=torch.float64).to(dtype).double()
                gradients = torch.autograd.grad(reference, leaves, seed)
                expected = (reference.detach(), seed)
                results = {"forward": [reference.detach()], PASSES[1]: gradients[:1], PASSES[2]: gradients[1:]}
            scale = max(float(b.abs().max()) for b in results[kind])  # of all: the sum of a bias's gradient can be near zero
            error = max(
                float((a - b).abs().max()) / max(scale, 1e-30) if a.isfinite().all() else float("inf")
                for a, b in zip(copies, results[kind])
            )
            copies.clear()
            row = {"end": number, "error": error}
            if fence:
                row |= {"reads": fence.fence_reads(), "writes": fence.fence_writes()}
            print(json.dumps(row), flush=True)


def convolve(case: Case, x: Any, weight: Any, bias: Any) -> Any:
    """Run the convolution of a case."""
    import torch.nn.functional as F

    options: dict[str, int] = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation, "groups": case.groups}
    if case.transposed:
        if case.stride > 1:
            options["output_padding"] = case.stride - 1
        return getattr(F, f"conv_transpose{case.dims}d")(x, weight, bias, **options)
    return getattr(F, f"conv{case.dims}d")(x, weight, bias, **options)
