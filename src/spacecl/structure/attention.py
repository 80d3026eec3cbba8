"""`nn.MultiheadAttention` for any number of heads: the same tensors and the same result, by code that does not tie widths.

PyTorch's own code takes the width of the heads together from that of the input, so that no head could be removed while the
model keeps its width, or the other way round.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import register_layer


class MultiheadAttention(nn.MultiheadAttention):
    """PyTorch's layer with sizes that follow its tensors."""

    _qkv_same_embed_dim = property(  # type: ignore[assignment]
        lambda self: False, doc="What nn.TransformerEncoderLayer asks before it runs a kernel of its own instead of this code."
    )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self._project([query, key, value])
        mask = _merge_masks(attn_mask, key_padding_mask, q)
        if need_weights:
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), self.dropout, self.training)
            mixed, shown = weights @ v, weights.mean(1) if average_attn_weights else weights
        else:
            mixed, shown = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0), None
        result = self.out_proj(mixed.transpose(1, 2).flatten(2))  # (rows, steps, width)
        if query.dim() == 2:  # one example without a dimension for rows
            return result[0], None if shown is None else shown[0]
        return result if self.batch_first else result.transpose(0, 1), shown

    def _project(self, inputs: list[Tensor]) -> list[Tensor]:
        """Queries, keys and values by heads: (rows, heads, steps, width of a head).

        One matrix makes all three. An input of which only some are used is multiplied by all of it nevertheless: parts of a
        parameter are computed weights, which could not be narrowed.
        """
        assert self.in_proj_weight is not None
        made: dict[int, list[Tensor]] = {}
        for x in inputs:
            if id(x) not in made:
                rows_first = x[None] if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)
                both = F.linear(rows_first, self.in_proj_weight, self.in_proj_bias)
                parts = both.reshape(*both.shape[:2], 3, self.num_heads, -1)
                made[id(x)] = list(parts.permute(2, 0, 3, 1, 4).unbind(0))
        return [made[id(x)][number] for number, x in enumerate(inputs)]


def _merge_masks(mask: Tensor | None, padding: Tensor | None, queries: Tensor) -> Tensor | None:
    """One mask to add to the scores, of a shape that fits (rows, heads, steps, steps)."""
    masks = []
    if mask is not None:
        masks.append(mask if mask.dim() == 2 else mask.reshape(len(queries), -1, *mask.shape[1:]))
    if padding is not None:
        masks.append(padding[..., None, None, :])
    added = [torch.zeros_like(m, dtype=queries.dtype).masked_fill(m, -torch.inf) if m.dtype == torch.bool else m for m in masks]
    return None if not added else added[0] if len(added) == 1 else added[0] + added[1]


class TransformerEncoder(nn.TransformerEncoder):
    """PyTorch's layer, which compares the values of a mask with those of a causal one unless it is told what it is."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        return super().forward(src, mask, src_key_padding_mask, bool(is_causal))


def _initialize(layer: MultiheadAttention) -> None:
    nn.init.xavier_uniform_(layer.in_proj_weight)
    if layer.in_proj_bias is not None:
        nn.init.zeros_(layer.in_proj_bias)


@register_layer(MultiheadAttention, initialize=_initialize)
def _adapt(layer: MultiheadAttention) -> None:
    outputs, layer.embed_dim = layer.in_proj_weight.shape
    layer.kdim = layer.vdim = layer.embed_dim
    layer.num_heads = outputs // (3 * layer.head_dim)


def replace_attention(model: nn.Module) -> None:
    """Make every plain `nn.MultiheadAttention` inside a model one whose heads can be removed, in place.

    The tensors and their names stay. Layers that have other widths or biases of their own for keys and values, or add a zero,
    stay as they are.
    """
    for layer in model.modules():
        if type(layer) is nn.MultiheadAttention and layer.in_proj_weight is not None:
            if layer.bias_k is None and not layer.add_zero_attn:
                layer.__class__ = MultiheadAttention
        elif type(layer) is nn.TransformerEncoder:
            layer.use_nested_tensor = False  # which PyTorch's own kernels need
            layer.__class__ = TransformerEncoder
