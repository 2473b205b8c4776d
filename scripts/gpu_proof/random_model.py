"""A Qwen3-VL of the published 8B's shape with random weights, for speed and memory: `random_model.py FOLDER [small]`.

Tokenizer, chat template and processors are those of the shipped tiny model, whose special tokens have other numbers
than the published ones. `ids.json` beside the weights has the tokens that such a model may sample: the end marker, and
characters that no merge joins, so that a reply's text has the tokens that were sampled and SkyRL's own generator, which
tokenizes it again, can play along. `small` has the shape's structure at a size for a CPU.
"""

from __future__ import annotations

import json
import shutil
import string
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3VLConfig, Qwen3VLForConditionalGeneration

TINY = Path(__file__).resolve().parents[2] / "models/tiny_qwen3_vl"

TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5000000,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
    "dtype": "bfloat16",
}
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
    "hidden_act": "gelu_pytorch_tanh",
}
SMALL_TEXT = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
SMALL_VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "deepstack_visual_indexes": [1],
}


def main(folder: Path, *, small: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in TINY.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in ("config.json", "warm_start.json"):
            shutil.copy(file, folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3VLForConditionalGeneration(_config(small=small))
    model.save_pretrained(folder, max_shard_size="5GB")
    (folder / "ids.json").write_text(json.dumps(sampled(AutoTokenizer.from_pretrained(TINY)), separators=(",", ":")))


def sampled(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids = tokenizer.get_vocab()
    return [ids[token] for token in (*string.ascii_uppercase, *string.digits, str(tokenizer.eos_token))]


def _config(*, small: bool) -> Qwen3VLConfig:
    tiny = json.loads((TINY / "config.json").read_text())
    ids = {name: value for name, value in tiny.items() if name.endswith("_token_id")}
    text: dict[str, Any] = tiny["text_config"] | TEXT | (SMALL_TEXT if small else {})
    vision: dict[str, Any] = tiny["vision_config"] | VISION | (SMALL_VISION if small else {})
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    return config


if __name__ == "__main__":
    main(Path(sys.argv[1]), small=sys.argv[2:] == ["small"])
