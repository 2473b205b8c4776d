"""SkyRL's training worker without the padding of the rest of the batch.

SkyRL pads every row to the longest of the whole batch, and computes on the padding: vision models cannot be packed
there. Rollouts end after some turns or after all of them; here a pass is as long as its own longest row. Padding is on
the left, so that cutting it off moves no token against its answer.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

from dataclasses import fields
from typing import Any

import ray
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase

WHOLE = ("sequences", "attention_mask")
"""As wide as prompt and response together; what else is per token has the width of the response."""


class UnpaddedPolicyWorker(FSDPPolicyWorkerBase):
    def _forward_backward_micro(self, experience: Any, *rest: Any, **named: Any) -> dict[str, Any]:
        """SkyRL's, on what `cut` leaves of the experience; its outputs are of a row's own length already."""
        width, response = cut(experience.attention_mask, experience.num_actions)
        for field in fields(experience):
            value = getattr(experience, field.name)
            if isinstance(value, torch.Tensor) and value.dim() == 2:
                setattr(experience, field.name, value[:, -(width if field.name in WHOLE else response) :])
        experience.num_actions = response
        return super()._forward_backward_micro(experience, *rest, **named)

    def _forward_micro_batch(self, micro_batch: Any) -> Any:
        """SkyRL's, on what `cut` leaves of the rows; the log-probabilities get their old width back, with zeros."""
        before = micro_batch.metadata["response_length"]
        width, response = cut(micro_batch["attention_mask"], before)
        short = TrainingInputBatch(
            {name: value[:, -width:] if name in WHOLE else value for name, value in micro_batch.items()}
        )
        short.metadata = {**micro_batch.metadata, "response_length": response}
        output = super()._forward_micro_batch(short)
        output["output"] = torch.nn.functional.pad(output["output"], (before - response, 0))
        output.metadata = micro_batch.metadata
        return output


PolicyWorker: Any = ray.remote(num_gpus=1)(UnpaddedPolicyWorker)


def cut(attention_mask: torch.Tensor, response: int) -> tuple[int, int]:
    """How many of the last columns hold all there is, and how many of these can be response: (width, response)."""
    width = int(attention_mask.sum(dim=1).max())
    return width, min(response, width - 1)
