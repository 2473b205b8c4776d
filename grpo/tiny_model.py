"""The small real Qwen3-VL that makes the first run possible without a GPU or a download.

Same classes, processor, chat template shape and special tokens as the published models, saved as an ordinary Hugging
Face folder; only the sizes differ. The initialisation differs too, because transformers' default (std 0.02) hardly
trains at this width: the position embeddings drown in the patch embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grpo.strict import Positive, Strict

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

PATCH, MERGE = 16, 2


class TinySizes(Strict):
    """Everything about the model that is not Qwen3-VL's own."""

    vocabulary: Positive
    text_hidden: Positive
    text_layers: Positive
    text_heads: Positive
    text_ffn: Positive
    vision_hidden: Positive
    vision_depth: Positive
    vision_heads: Positive
    vision_ffn: Positive
    image_patches: Positive
    """Patches along the side of the training images, for which position interpolation is the identity."""


def build_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-level BPE with Qwen2's pre-tokenisation, trained on `texts`; any text can be encoded."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    model = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],  # pyright: ignore[reportArgumentType]
        unk_token="<|endoftext|>",
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=32768,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, sizes: TinySizes, seed: int) -> Any:
    """A randomly initialised Qwen3VLForConditionalGeneration, float32."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": sizes.text_hidden,
            "intermediate_size": sizes.text_ffn,
            "num_hidden_layers": sizes.text_layers,
            "num_attention_heads": sizes.text_heads,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 32768,
            # The three sections share head_dim / 2 frequencies.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": True,
            "dtype": "float32",
        },
        vision_config={
            "hidden_size": sizes.vision_hidden,
            "intermediate_size": sizes.vision_ffn,
            "depth": sizes.vision_depth,
            "num_heads": sizes.vision_heads,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": sizes.text_hidden,
            "num_position_embeddings": sizes.image_patches**2,
            "deepstack_visual_indexes": [1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config)
    _initialise(model)
    return model


def _initialise(model: nn.Module) -> None:
    """Scale every layer by its fan-in, and make position embeddings large enough to be seen.

    Measured on 7x7 mazes at step 120: greedy success 0.00 with the default, 0.20 with this and AdamW, 0.52 with Muon.
    """
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
                module.weight.normal_(std=module.in_features**-0.5)
            elif isinstance(module, nn.Conv3d):
                module.weight.normal_(std=module.weight[0].numel() ** -0.5)
            elif isinstance(module, nn.Embedding):
                is_position = name.endswith("pos_embed")
                module.weight.normal_(std=0.5 if is_position else module.embedding_dim**-0.5)


def save_processor(tokenizer: Any, folder: Path) -> None:
    """Write tokenizer, chat template, image and video processor as the published Qwen3-VL folders have them.

    The processor files are written as JSON because the classes need torchvision; AutoProcessor reads them where it
    is installed, `grpo.policy.load_image_processor` (PIL) reads them everywhere.
    """
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    common = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    image = common | {
        "size": {"shortest_edge": 1024, "longest_edge": 1048576},
        "image_processor_type": "Qwen2VLImageProcessor",
    }
    video = common | {
        "size": {"shortest_edge": 4096, "longest_edge": 25165824},
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
    for name, content in (("preprocessor_config.json", image), ("video_preprocessor_config.json", video)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
