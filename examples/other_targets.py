"""Tasks that predict something other than one class of several, all learned by one network:

    spacecl run examples/other_targets.py --model examples/other_targets.py:network

Whole numbers are classes, zeros and ones in rows are labels, and fractions are values. This example uses scikit-learn's
handwritten digits: which digit it is, what is true of the digit, and where its ink lies.
"""

import torch
from sklearn.datasets import load_digits

import spacecl

LABELS = {"even": [0, 2, 4, 6, 8], "prime": [2, 3, 5, 7], "has a closed loop": [0, 6, 8, 9], "greater than 4": [5, 6, 7, 8, 9]}


def tasks():
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    labels = torch.stack([torch.isin(y, torch.tensor(some)) for some in LABELS.values()], 1).long()  # (images, 4)
    grid = torch.linspace(-3.5, 3.5, 8)  # millimetres
    ink = x.reshape(-1, 8, 8) / x.sum(1)[:, None, None]
    center = torch.stack([(ink.sum(1) * grid).sum(1), (ink.sum(2) * grid).sum(1)], 1)  # (images, 2)
    train, test = slice(0, 1400), slice(1400, None)
    targets = {"digit": (y, None), "properties": (labels, list(LABELS)), "center": (center, ["right", "down"])}
    return [
        spacecl.Task(name, (x[train], target[train]), test=(x[test], target[test]), classes=names)
        for name, (target, names) in targets.items()
    ]


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200), torch.nn.ReLU(), torch.nn.Linear(200, 1)
    )
