"""Search for one option of every method by validation data, as tune.toml says. The same command resumes.

    python results/tune.py [--only METHOD,...] [--work DIR] [--data DIR]

Every search leaves its tune.json in results/tuned/BENCHMARK/METHOD.json. The presets of the benchmarks have the best values.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from spacecl.runs.tune import parse_choices, tune

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
SEED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="METHODS", help="methods to search for")
    parser.add_argument("--work", type=Path, default=Path("runs/tuned"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    options = parser.parse_args()
    searches = tomllib.loads((HERE / "tune.toml").read_text())
    for benchmark, limit in searches["benchmarks"].items():
        for method, values in searches["values"].items():
            file = HERE / "tuned" / benchmark / f"{method}.json"
            if file.exists() or (options.only and method not in options.only):
                continue
            settings = {"benchmark": benchmark, "method": method, "limit": limit, "seed": SEED}
            work = options.work / benchmark / method
            result = tune(settings, parse_choices([values]), work, data=options.data, progress=False)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(work / "tune.json", file)
            print(f"{benchmark}, {method}: {result['best']}", flush=True)


if __name__ == "__main__":
    main()
