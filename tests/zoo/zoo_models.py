"""One model of every family in torchvision, timm and transformers that classifies, and some of plain torch.nn layers.

Weights are random: nothing is downloaded. Models of transformers are small configurations.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from stand_ins import import_torchvision
from torch import Tensor, nn

CLASSES = 4
TOKENS = torch.tensor([[2, 5, 7, 9, 3, 8, 6, 4]])
TEXT = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: how it is made, with an example of its input."""

    make: Callable[[], tuple[nn.Module, Any]]
    refused: str | None = None  # what the error says, if it is refused
    taught: bool = False  # whether the tests teach it two tasks, too


def image(size: int, channels: int = 3) -> Tensor:
    return torch.zeros(1, channels, size, size)


def torchvision_model(name: str, size: int = 64, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        return getattr(import_torchvision().models, name)(weights=None, num_classes=CLASSES, **options), image(size)

    return make


def timm_model(name: str, size: int | None = None, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    """Without a size, the input has the model's own. A size is passed on to models that need to know it."""

    def make() -> tuple[nn.Module, Any]:
        import_torchvision()
        import timm

        model = timm.create_model(name, num_classes=CLASSES, **options)
        return model, image(size or options.get("img_size") or model.default_cfg["input_size"][1])

    return make


def transformers_model(config: str, kind: str, example: Any, **options: Any) -> Callable[[], tuple[nn.Module, Any]]:
    def make() -> tuple[nn.Module, Any]:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import_torchvision()
        import transformers

        transformers.logging.set_verbosity_error()
        settings = getattr(transformers, config)(**options)
        settings.num_labels = CLASSES
        return getattr(transformers, kind)(settings), example

    return make


class Sequences(nn.Module):
    """Embedded tokens, a layer that reads sequences, and the mean over time."""

    def __init__(self, layer: nn.Module, width: int, inputs: int = 16):
        super().__init__()
        self.embed, self.layer, self.fc = nn.Embedding(50, inputs), layer, nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        result = self.layer(self.embed(tokens))
        return self.fc((result[0] if isinstance(result, tuple) else result).mean(1))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.hidden = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(x + self.attention(x, x, x, need_weights=False)[0]))


class PictureAndText(nn.Module):
    """Two inputs of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.embed, self.hidden = nn.Conv2d(3, 16, 3), nn.Embedding(50, 16), nn.Linear(32, 24)
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, picture: Tensor, text: Tensor) -> Tensor:
        both = torch.cat([torch.relu(self.conv(picture)).mean((2, 3)), self.embed(text).mean(1)], 1)
        return self.fc(torch.relu(self.hidden(both)))


class Decoder(nn.Module):
    """Down and up again, by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.fc = nn.Conv2d(3, 16, 3, 2, 1), nn.ConvTranspose2d(16, 12, 4, 2, 1), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.up(torch.relu(self.down(x)))).mean((2, 3)))


def _plain(make: Callable[[], nn.Module], example: Any) -> Callable[[], tuple[nn.Module, Any]]:
    return lambda: (make(), example)


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options), 2)


_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_WORDS = {**_SMALL, "vocab_size": 50}
_DECODER = {**_WORDS, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PIXELS = {**_SMALL, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_WAVE = {
    **_SMALL,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
_STANDARDISED = "its weight is computed"

ZOO: dict[str, Entry] = {
    "torchvision alexnet": Entry(torchvision_model("alexnet", 96)),
    "torchvision vgg11_bn": Entry(torchvision_model("vgg11_bn")),
    "torchvision resnet18": Entry(torchvision_model("resnet18"), taught=True),
    "torchvision resnext50_32x4d": Entry(torchvision_model("resnext50_32x4d"), taught=True),
    "torchvision wide_resnet50_2": Entry(torchvision_model("wide_resnet50_2")),
    "torchvision densenet121": Entry(torchvision_model("densenet121")),
    "torchvision squeezenet1_1": Entry(torchvision_model("squeezenet1_1"), taught=True),
    "torchvision googlenet": Entry(torchvision_model("googlenet", 96, init_weights=False), taught=True),
    "torchvision inception_v3": Entry(torchvision_model("inception_v3", 299, init_weights=False)),
    "torchvision mobilenet_v2": Entry(torchvision_model("mobilenet_v2"), taught=True),
    "torchvision mobilenet_v3_small": Entry(torchvision_model("mobilenet_v3_small")),
    "torchvision shufflenet_v2_x0_5": Entry(torchvision_model("shufflenet_v2_x0_5"), taught=True),
    "torchvision mnasnet0_5": Entry(torchvision_model("mnasnet0_5")),
    "torchvision efficientnet_b0": Entry(torchvision_model("efficientnet_b0")),
    "torchvision regnet_y_400mf": Entry(torchvision_model("regnet_y_400mf"), taught=True),
    "torchvision convnext_tiny": Entry(torchvision_model("convnext_tiny")),
    "torchvision swin_t": Entry(torchvision_model("swin_t")),
    "torchvision swin_v2_t": Entry(torchvision_model("swin_v2_t")),
    "torchvision vit_b_32": Entry(torchvision_model("vit_b_32", 64, image_size=64)),
    "timm skresnet18": Entry(timm_model("skresnet18", 64)),
    "timm ecaresnet26t": Entry(timm_model("ecaresnet26t", 64)),
    "timm resnest14d": Entry(timm_model("resnest14d", 64), taught=True),
    "timm res2net50_26w_4s": Entry(timm_model("res2net50_26w_4s", 64)),
    "timm regnetx_002": Entry(timm_model("regnetx_002", 64)),
    "timm resnetv2_50": Entry(timm_model("resnetv2_50", 64)),
    "timm resnetv2_50x1_bit": Entry(timm_model("resnetv2_50x1_bit", 64), refused=_STANDARDISED),
    "timm nf_resnet50": Entry(timm_model("nf_resnet50", 64), refused=_STANDARDISED),
    "timm hrnet_w18_small": Entry(timm_model("hrnet_w18_small", 64)),
    "timm dla34": Entry(timm_model("dla34", 64), taught=True),
    "timm dpn48b": Entry(timm_model("dpn48b", 64)),
    "timm vovnet39a": Entry(timm_model("vovnet39a", 64)),
    "timm selecsls42": Entry(timm_model("selecsls42", 64)),
    "timm cspresnet50": Entry(timm_model("cspresnet50", 64)),
    "timm darknet53": Entry(timm_model("darknet53", 64)),
    "timm mixnet_s": Entry(timm_model("mixnet_s", 64)),
    "timm mobilenetv4_conv_small": Entry(timm_model("mobilenetv4_conv_small", 64)),
    "timm ghostnet_100": Entry(timm_model("ghostnet_100", 64)),
    "timm repvgg_a0": Entry(timm_model("repvgg_a0", 64)),
    "timm mobileone_s0": Entry(timm_model("mobileone_s0", 64)),
    "timm fastvit_t8": Entry(timm_model("fastvit_t8", 64)),
    "timm starnet_s1": Entry(timm_model("starnet_s1", 64), taught=True),
    "timm inception_v4": Entry(timm_model("inception_v4", 128)),
    "timm inception_next_tiny": Entry(timm_model("inception_next_tiny", 64)),
    "timm xception41": Entry(timm_model("xception41", 96)),
    "timm rexnet_100": Entry(timm_model("rexnet_100", 64)),
    "timm hgnetv2_b0": Entry(timm_model("hgnetv2_b0", 64)),
    "timm convmixer_768_32": Entry(timm_model("convmixer_768_32", 56)),
    "timm resmlp_12_224": Entry(timm_model("resmlp_12_224")),
    "timm mixer_s32_224": Entry(timm_model("mixer_s32_224")),
    "timm gmlp_ti16_224": Entry(timm_model("gmlp_ti16_224")),
    "timm vit_tiny_patch16_224": Entry(timm_model("vit_tiny_patch16_224", img_size=64), taught=True),
    "timm deit_tiny_distilled_patch16_224": Entry(timm_model("deit_tiny_distilled_patch16_224", img_size=64), taught=True),
    "timm cait_xxs24_224": Entry(timm_model("cait_xxs24_224", img_size=64)),
    "timm beit_base_patch16_224": Entry(timm_model("beit_base_patch16_224", img_size=64, depth=2)),
    "timm eva02_tiny_patch14_224": Entry(timm_model("eva02_tiny_patch14_224", img_size=56)),
    "timm swin_tiny_patch4_window7_224": Entry(timm_model("swin_tiny_patch4_window7_224", img_size=56, window_size=7)),
    "timm levit_128s": Entry(timm_model("levit_128s"), taught=True),
    "timm crossvit_tiny_240": Entry(timm_model("crossvit_tiny_240")),
    "timm efficientformer_l1": Entry(timm_model("efficientformer_l1")),
    "timm efficientvit_b0": Entry(timm_model("efficientvit_b0", 64)),
    "timm efficientvit_m0": Entry(timm_model("efficientvit_m0")),
    "timm visformer_tiny": Entry(timm_model("visformer_tiny", img_size=64)),
    "timm pit_ti_224": Entry(timm_model("pit_ti_224")),
    "timm tnt_s_legacy_patch16_224": Entry(timm_model("tnt_s_legacy_patch16_224", depth=2)),
    "timm convit_tiny": Entry(timm_model("convit_tiny", img_size=64)),
    "timm coat_lite_tiny": Entry(timm_model("coat_lite_tiny", img_size=64)),
    "timm coatnet_nano_rw_224": Entry(timm_model("coatnet_nano_rw_224", img_size=64)),
    "timm edgenext_xx_small": Entry(timm_model("edgenext_xx_small", 64)),
    "timm xcit_nano_12_p16_224": Entry(timm_model("xcit_nano_12_p16_224", img_size=64)),
    "timm pvt_v2_b0": Entry(timm_model("pvt_v2_b0", 64)),
    "timm twins_svt_small": Entry(timm_model("twins_svt_small", img_size=64)),
    "timm nest_tiny": Entry(timm_model("nest_tiny", img_size=64)),
    "timm poolformer_s12": Entry(timm_model("poolformer_s12", 64)),
    "timm mobilevit_xxs": Entry(timm_model("mobilevit_xxs", 64)),
    "timm convnextv2_atto": Entry(timm_model("convnextv2_atto", 64), taught=True),
    "timm davit_tiny": Entry(timm_model("davit_tiny", 64)),
    "timm focalnet_tiny_srf": Entry(timm_model("focalnet_tiny_srf", 64)),
    "timm repvit_m0_9": Entry(timm_model("repvit_m0_9", 64)),
    "timm sequencer2d_s": Entry(timm_model("sequencer2d_s", img_size=56)),
    "timm tiny_vit_5m_224": Entry(timm_model("tiny_vit_5m_224")),
    "timm mambaout_femto": Entry(timm_model("mambaout_femto", 64)),
    "transformers BERT": Entry(transformers_model("BertConfig", "BertForSequenceClassification", TEXT, **_WORDS), taught=True),
    "transformers RoBERTa": Entry(transformers_model("RobertaConfig", "RobertaForSequenceClassification", TEXT, **_WORDS)),
    "transformers DistilBERT": Entry(
        transformers_model(
            "DistilBertConfig",
            "DistilBertForSequenceClassification",
            TEXT,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
            vocab_size=50,
        ),
    ),
    "transformers ALBERT": Entry(
        transformers_model("AlbertConfig", "AlbertForSequenceClassification", TEXT, **_WORDS, embedding_size=16)
    ),
    "transformers ELECTRA": Entry(
        transformers_model("ElectraConfig", "ElectraForSequenceClassification", TEXT, **_WORDS, embedding_size=16)
    ),
    "transformers DeBERTa v2": Entry(
        transformers_model("DebertaV2Config", "DebertaV2ForSequenceClassification", TEXT, **_WORDS)
    ),
    "transformers XLNet": Entry(
        transformers_model(
            "XLNetConfig", "XLNetForSequenceClassification", TEXT, d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=50
        )
    ),
    "transformers FNet": Entry(
        transformers_model(
            "FNetConfig",
            "FNetForSequenceClassification",
            TOKENS,
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=64,
            vocab_size=50,
        )
    ),
    "transformers GPT-2": Entry(
        transformers_model(
            "GPT2Config", "GPT2ForSequenceClassification", TEXT, n_embd=32, n_layer=2, n_head=4, vocab_size=50, pad_token_id=0
        ),
        taught=True,
    ),
    "transformers OPT": Entry(
        transformers_model(
            "OPTConfig",
            "OPTForSequenceClassification",
            TEXT,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            vocab_size=50,
            word_embed_proj_dim=32,
            layerdrop=0.1,
            pad_token_id=1,
        )
    ),
    "transformers BART": Entry(
        transformers_model(
            "BartConfig",
            "BartForSequenceClassification",
            TEXT,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=50,
            eos_token_id=4,
            decoder_start_token_id=4,
            forced_eos_token_id=4,
        )
    ),
    "transformers Llama": Entry(transformers_model("LlamaConfig", "LlamaForSequenceClassification", TEXT, **_DECODER)),
    "transformers GPT-NeoX": Entry(
        transformers_model("GPTNeoXConfig", "GPTNeoXForSequenceClassification", TEXT, **_WORDS, pad_token_id=0)
    ),
    "transformers Bloom": Entry(
        transformers_model(
            "BloomConfig",
            "BloomForSequenceClassification",
            TEXT,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            vocab_size=50,
            pad_token_id=0,
        )
    ),
    "transformers XLM": Entry(
        transformers_model(
            "XLMConfig", "XLMForSequenceClassification", TEXT, n_words=50, emb_dim=32, n_layers=2, n_heads=4, vocab_size=50
        )
    ),
    "transformers MPNet": Entry(transformers_model("MPNetConfig", "MPNetForSequenceClassification", TEXT, **_WORDS)),
    "transformers BigBird": Entry(
        transformers_model("BigBirdConfig", "BigBirdForSequenceClassification", TEXT, **_WORDS, attention_type="original_full")
    ),
    "transformers MobileBERT": Entry(
        transformers_model(
            "MobileBertConfig",
            "MobileBertForSequenceClassification",
            TEXT,
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            intra_bottleneck_size=32,
            embedding_size=16,
            true_hidden_size=32,
        )
    ),
    "transformers ConvBERT": Entry(
        transformers_model("ConvBertConfig", "ConvBertForSequenceClassification", TEXT, **_WORDS, embedding_size=32)
    ),
    "transformers I-BERT": Entry(transformers_model("IBertConfig", "IBertForSequenceClassification", TEXT, **_WORDS)),
    "transformers CANINE": Entry(
        transformers_model(
            "CanineConfig",
            "CanineForSequenceClassification",
            {name: tensor.repeat(1, 4) for name, tensor in TEXT.items()},
            **_SMALL,
            downsampling_rate=2,
            local_transformer_stride=16,
        )
    ),
    "transformers ModernBERT": Entry(
        transformers_model(
            "ModernBertConfig",
            "ModernBertForSequenceClassification",
            TEXT,
            **_WORDS,
            pad_token_id=0,
            cls_token_id=1,
            sep_token_id=2,
            bos_token_id=1,
            eos_token_id=2,
        )
    ),
    "transformers T5": Entry(
        transformers_model(
            "T5Config",
            "T5ForSequenceClassification",
            {"input_ids": torch.tensor([[5, 7, 9, 3, 8, 6, 4, 1]]), "attention_mask": torch.ones_like(TOKENS)},
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=50,
            decoder_start_token_id=0,
        )
    ),
    "transformers GPT-J": Entry(
        transformers_model(
            "GPTJConfig",
            "GPTJForSequenceClassification",
            TEXT,
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=50,
            pad_token_id=0,
            rotary_dim=4,
        )
    ),
    "transformers Falcon": Entry(
        transformers_model(
            "FalconConfig",
            "FalconForSequenceClassification",
            TEXT,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=50,
            pad_token_id=0,
        )
    ),
    "transformers MobileViT": Entry(
        transformers_model(
            "MobileViTConfig",
            "MobileViTForImageClassification",
            image(64),
            image_size=64,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 64],
        )
    ),
    "transformers ViT": Entry(transformers_model("ViTConfig", "ViTForImageClassification", image(32), **_PIXELS)),
    "transformers DINOv2": Entry(transformers_model("Dinov2Config", "Dinov2ForImageClassification", image(32), **_PIXELS)),
    "transformers BEiT": Entry(transformers_model("BeitConfig", "BeitForImageClassification", image(32), **_PIXELS)),
    "transformers Swin v2": Entry(
        transformers_model(
            "Swinv2Config",
            "Swinv2ForImageClassification",
            image(32),
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 4],
            image_size=32,
            window_size=4,
            patch_size=2,
        )
    ),
    "transformers SegFormer": Entry(
        transformers_model(
            "SegformerConfig",
            "SegformerForImageClassification",
            image(32),
            hidden_sizes=[8, 16, 32, 32],
            num_attention_heads=[1, 2, 4, 4],
            depths=[1, 1, 1, 1],
            decoder_hidden_size=32,
        )
    ),
    "transformers PoolFormer": Entry(
        transformers_model("PoolFormerConfig", "PoolFormerForImageClassification", image(32), **_STAGES)
    ),
    "transformers LeViT": Entry(transformers_model("LevitConfig", "LevitForImageClassification", image(64), image_size=64)),
    "transformers Wav2Vec2": Entry(
        transformers_model("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", torch.zeros(1, 4000), **_WAVE)
    ),
    "torch LSTM": Entry(_plain(lambda: Sequences(nn.LSTM(16, 24, 2, batch_first=True), 24), TOKENS), taught=True),
    "torch GRU": Entry(
        _plain(lambda: Sequences(nn.GRU(16, 24, bidirectional=True, batch_first=True), 48), TOKENS), taught=True
    ),
    "torch LSTM with a projection": Entry(_plain(lambda: Sequences(nn.LSTM(16, 24, proj_size=8, batch_first=True), 8), TOKENS)),
    "torch MultiheadAttention": Entry(_plain(lambda: Sequences(SelfAttention(), 24), TOKENS)),
    "torch TransformerEncoder": Entry(_plain(lambda: Sequences(_encoder(), 16), TOKENS), taught=True),
    "torch TransformerEncoder, norm first": Entry(_plain(lambda: Sequences(_encoder(norm_first=True), 16), TOKENS)),
    "torch picture and text": Entry(_plain(PictureAndText, {"picture": image(8), "text": TOKENS}), taught=True),
    "torch ConvTranspose2d": Entry(_plain(Decoder, image(8))),
}
