"""Define your own tasks and network for `spacecl run`:

    spacecl run examples/own_tasks.py --model examples/own_tasks.py:network

`tasks()` returns a list of `spacecl.Task`, each with test data. `network()` returns a model for their inputs. Data can be a
pair of tensors, `spacecl.Images`, a dataset or a `DataLoader`: see docs/data.md. This example uses scikit-learn's handwritten
digits.
"""

import torch
from sklearn.datasets import load_digits

import spacecl


def tasks():
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(digits)
    train, test = slice(0, 1400), slice(1400, None)
    labels = {"odd-or-even": y % 2, "low-or-high": (y > 4).long(), "which-digit": y}
    return [spacecl.Task(name, (x[train], target[train]), test=(x[test], target[test])) for name, target in labels.items()]


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 4, 10),
    )
