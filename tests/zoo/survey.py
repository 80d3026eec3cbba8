"""Try models beyond the zoo: `python tests/zoo/survey.py timm` or `transformers`; prints a line for each, and a summary.

Of timm, the smallest model of every name in every module that the zoo does not have; of transformers, a tiny configuration of
everything that classifies. Takes about ten minutes each on one core. A model that does not run by itself is left out.
"""

import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from stand_ins import import_torchvision
from table import half_width_share
from torch import Tensor, nn
from zoo_models import ZOO

from spacecl.errors import SpaceError
from spacecl.structure.validate import validate_model

LARGEST = 60e6  # parameters
SECONDS = 150  # for a model, at most
SMALL = {  # values of configurations, where they have them
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "image_size", "d_inner", "n_inner"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_window", "state_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "num_frames", "time_step_rank"), 4),
    **{"vocab_size": 100, "num_labels": 3, "num_key_value_heads": 2, "use_cache": False, "num_feat_extract_layers": 3},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    **{"conv_dim": (32, 32, 32), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2)},
    **{"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
}
Make = Callable[[], tuple[nn.Module, Any]]  # a model, and an input that it takes


class OutOfTimeError(BaseException):
    """A model has taken too long; no handler of ordinary errors keeps it."""


def run_first(model: nn.Module, examples: list[Any]) -> Any:
    """The first of some inputs that a model takes."""
    model.eval()
    for number, example in enumerate(examples):
        try:
            with torch.no_grad():
                model(**example) if isinstance(example, dict) else model(example)
            return example
        except Exception:
            if number == len(examples) - 1:
                raise


def count(make: Callable[[], nn.Module]) -> float:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def list_timm() -> Iterator[tuple[str, Make]]:
    import timm

    known, smallest = {name.removeprefix("timm ") for name in ZOO}, {}
    for name in timm.list_models():
        try:
            size = count(lambda name=name: timm.create_model(name))
        except Exception:
            continue
        kind = timm.models._registry._model_to_module[name], "".join(filter(str.isalpha, name.split("_")[0]))
        smallest[kind] = min(smallest.get(kind, (LARGEST, "")), (size, name))
    for _, name in sorted(smallest.values(), key=lambda entry: entry[1]):
        if name and name not in known:

            def make(name: str = name) -> tuple[nn.Module, Tensor]:
                model = timm.create_model(name, num_classes=3)
                sides = (64, model.default_cfg["input_size"][-1])
                return model, run_first(model, [torch.zeros(2, 3, side, side) for side in sides])

            yield name, make


def list_transformers() -> Iterator[tuple[str, Make]]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    from transformers.models.auto import modeling_auto

    transformers.logging.set_verbosity_error()
    tokens = torch.tensor([[1, 5, 7, 9, 3, 8, 6, 2]])
    sound = [torch.zeros(1, 4000), torch.zeros(1, 1024, 128)]
    kinds = {
        "SEQUENCE": [{"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, {"input_ids": tokens}],
        "IMAGE": [torch.zeros(1, 3, side, side) for side in (64, 224)],
        "AUDIO": [*({"input_values": x} for x in sound), {"input_features": torch.zeros(1, 80, 3000)}],
        "VIDEO": [torch.zeros(1, frames, 3, 64, 64) for frames in (4, 16)],
    }
    for kind, examples in kinds.items():
        for key, names in getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES").items():

            def make(key: str = key, names: Any = names, examples: list[Any] = examples) -> tuple[nn.Module, Any]:
                config = transformers.CONFIG_MAPPING[key]()
                for option, value in SMALL.items():
                    if getattr(config, option, None) is not None or option == "pad_token_id":
                        setattr(config, option, value)
                model_class = getattr(transformers, names[0] if isinstance(names, tuple) else names)
                if count(lambda: model_class(config)) > LARGEST:
                    raise ValueError("too large")
                model = model_class(config)
                return model, run_first(model, examples)

            yield f"{kind.lower()} {key}", make


def survey(name: str, make: Make) -> str:
    """What becomes of a model: admitted, refused, failed, too slow, or left out because it does not run by itself."""
    start, outcome, detail = time.process_time(), "left out", ""
    signal.alarm(SECONDS)
    try:
        torch.manual_seed(0)
        model, example = make()
        outcome, start = "failed", time.process_time()
        channels = validate_model(model, example).channels
        outcome, detail = "admitted", f"{half_width_share(channels, dict(model.named_parameters())):.2f} left at half width"
    except OutOfTimeError:
        outcome = "too slow"
    except SpaceError as error:
        outcome, detail = "refused", " | ".join(str(error).splitlines())[:300]
    except Exception as error:
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        signal.alarm(0)
    print(f"{name}: {outcome} ({time.process_time() - start:.1f} s) {detail}", flush=True)
    return outcome


def stop(*_: object) -> None:
    raise OutOfTimeError


if __name__ == "__main__":
    import_torchvision()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    models = {"timm": list_timm, "transformers": list_transformers}[sys.argv[1]]()
    print(dict(Counter(survey(name, make) for name, make in models)))
