"""The peer of the step benchmark: TRL's GRPOTrainer with an environment factory, at the same work.

Runs under an interpreter of its own, because TRL 1.16 wants a newer transformers than this project pins:
    python trl_step.py job.json result.json
The prompts are token for token those of this project: tool results are rendered as user turns, and a reply *is* the
tool call.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from peft import LoraConfig
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen2VLImageProcessorPil,
    Qwen3VLProcessor,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

from envs.maze_2d import Maze2D
from grpo.types import Observation, Task

# TRL refuses templates that do not show a tool call; here only its probes ever render one.
TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content or [] -%}
{%- if part.type == 'image' -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- call.function.name + (call.function.arguments | tojson) -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


class ImageOnlyProcessor(Qwen3VLProcessor):
    """Qwen3-VL's processor without its video part, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor" and argument is None:
            return type(None)
        return super().check_argument_for_proper_class(argument_name, argument)


@dataclass
class Tally:
    """What was generated since the last step began."""

    replies: int = 0
    tokens: int = 0
    solved: int = 0
    rollouts_end: float = 0.0
    """CPU clock at the latest reply. At the rewards it would be too late: old log-probabilities come before them."""


@dataclass
class StepTimer(TrainerCallback):
    """Times each GRPO step: `updates` optimiser steps, of which the first generates the rollouts."""

    tally: Tally
    updates: int
    steps: list[dict[str, float]] = field(default_factory=list)
    start: tuple[float, float] = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            self.tally.replies = self.tally.tokens = self.tally.solved = 0
            self.start = (time.perf_counter(), time.process_time())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.updates == 0:
            self.steps.append(
                {
                    "wall_seconds": time.perf_counter() - self.start[0],
                    "cpu_seconds": time.process_time() - self.start[1],
                    "rollout_cpu_seconds": self.tally.rollouts_end - self.start[1],
                    "turns": self.tally.replies,
                    "tokens": self.tally.tokens,
                    "solved": self.tally.solved,
                }
            )


def main(job: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    maze = Maze2D(**job["env"])
    processor = load_processor(job["model"])
    tally = Tally()
    count_replies(processor.tokenizer, tally)

    class MazeTool:
        """One rollout's maze; TRL finds `reset` and the tool `act` by their names."""

        def reset(self, seed: int, **_: Any) -> list[dict[str, Any]]:
            self.episode = maze.episode(Task(id=str(seed), split="train", seed=seed, data={}))
            return blocks(self.episode.observe())

        def act(self, reply: str) -> list[dict[str, Any]]:
            """Acts on a reply.

            Args:
                reply: what the model wrote
            """
            self.episode.act(reply)
            return blocks(self.episode.observe())

    def solved(completions: list[Any], environments: list[MazeTool], **_: Any) -> list[float]:
        lasts = [completion[-1] for completion in completions]
        totals = [
            float("tool_calls" not in last and environment.episode.act(last["content"]).solved)
            for last, environment in zip(lasts, environments, strict=True)
        ]
        tally.solved = int(sum(totals))
        return totals

    timer = StepTimer(tally=tally, updates=job["updates_per_step"])
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in job["seeds"]]
    trainer = GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(job["model"], dtype=torch.float32),
        args=config(job, processor.tokenizer),
        reward_funcs=[solved],
        train_dataset=Dataset.from_list(rows),
        processing_class=processor,
        peft_config=LoraConfig(**job["lora"], task_type="CAUSAL_LM"),
        environment_factory=MazeTool,
        callbacks=[timer],
    )
    trainer.train()
    trainable = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    versions = {module.__name__: module.__version__ for module in (trl, transformers, torch)}
    return {"versions": versions, "trainable_parameters": trainable, "steps": timer.steps}


def load_processor(folder: str) -> ImageOnlyProcessor:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    processor = ImageOnlyProcessor(images, tokenizer, None, chat_template=TEMPLATE)
    tokenizer.response_schema = {}  # any value: without one TRL looks its own up and knows no such template
    return processor


def count_replies(tokenizer: Any, tally: Tally) -> None:
    """Read a reply as a call of `act` with itself, unless it stops: without a tool to call, TRL ends the episode."""

    def parse_response(ids: list[int], **_: Any) -> dict[str, Any]:
        tally.replies += 1
        tally.tokens += len(ids)
        tally.rollouts_end = time.process_time()
        text = tokenizer.decode(ids).removesuffix(tokenizer.eos_token)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if "<action>stop</action>" not in text:
            message["tool_calls"] = [{"type": "function", "function": {"name": "act", "arguments": {"reply": text}}}]
        return message

    tokenizer.parse_response = parse_response


def blocks(observation: Observation) -> list[dict[str, Any]]:
    images = [{"type": "image", "image": Image.fromarray(image)} for image in observation.images]
    return [{"type": "text", "text": observation.text}, *images]


def config(job: dict[str, Any], tokenizer: Any) -> GRPOConfig:
    rows = job["prompts_per_step"] * job["group_size"]
    micro_batches = rows // job["per_device_batch_size"]
    banned = [token for token in tokenizer.all_special_ids if token != tokenizer.eos_token_id]
    return GRPOConfig(
        output_dir=job["scratch"],
        max_steps=job["steps"] * job["updates_per_step"],
        per_device_train_batch_size=job["per_device_batch_size"],
        steps_per_generation=micro_batches,
        gradient_accumulation_steps=micro_batches // job["updates_per_step"],
        num_generations=job["group_size"],
        learning_rate=job["learning_rate"],
        warmup_steps=job["warmup_steps"] * job["updates_per_step"],
        temperature=job["temperature"],
        beta=0.0,
        max_tool_calling_iterations=job["env"]["max_turns"] - 1,
        max_completion_length=job["max_prompt_tokens"],
        generation_kwargs={"max_new_tokens": job["max_completion_tokens"], "suppress_tokens": banned},
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        seed=job["seed"],
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    result = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(result))
