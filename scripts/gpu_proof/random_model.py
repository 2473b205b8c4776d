"""A Qwen3-VL of the published 8B's shape with random weights, for speed and memory: `random_model.py FOLDER`.

Tokenizer, chat template and processors are those of the shipped tiny model, whose special tokens have other numbers
than the published ones. Prints the ids of what such a model may sample: a random one would mostly name tokens that the
tokenizer does not have.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

TINY = Path(__file__).resolve().parents[2] / "models/tiny_qwen3_vl"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in TINY.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in ("config.json", "warm_start.json"):
            shutil.copy(file, folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3VLForConditionalGeneration(_config())
    model.save_pretrained(folder, max_shard_size="5GB")
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    banned = set(tokenizer.all_special_ids) - {tokenizer.eos_token_id}
    print(json.dumps([token for token in range(len(tokenizer)) if token not in banned], separators=(",", ":")))


def _config() -> Qwen3VLConfig:
    tiny = json.loads((TINY / "config.json").read_text())
    ids = {name: value for name, value in tiny.items() if name.endswith("_token_id")}
    text = tiny["text_config"] | {
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
    vision = tiny["vision_config"] | {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "out_hidden_size": 4096,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
        "hidden_act": "gelu_pytorch_tanh",
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    return config


if __name__ == "__main__":
    main(Path(sys.argv[1]))
