"""SkyRL's worker on a CPU: without the padding, losses, gradients and log-probabilities stay what they are."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import configs
import pytest
import torch
from scripted_vllm import CHAT, TINY
from skyrl.backends.skyrl_train.training_batch import TensorList, TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper
from skyrl.backends.skyrl_train.workers.worker_utils import BaseBatchIterator

from grpo.engines import skyrl
from grpo.engines.skyrl_settings import settings
from grpo.engines.skyrl_workers import UnpaddedPolicyWorker, cut

PATCHES, MERGED = 64, 16
LENGTHS = ((30, 40), (30, 9), (34, 17))
"""Prompt and response of each row; the batch is 80 wide, its response 45, as other rows want it."""
WIDTH, RESPONSE = 80, 45


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    yield


def batch() -> TrainingInputBatch:
    draw = torch.Generator().manual_seed(0)
    rows = len(LENGTHS)
    data: dict[str, Any] = {
        "sequences": torch.full((rows, WIDTH), 435),
        "attention_mask": torch.zeros(rows, WIDTH, dtype=torch.long),
    }
    for name in ("response_mask", "loss_mask"):
        data[name] = torch.zeros(rows, RESPONSE, dtype=torch.long)
    for name in ("action_log_probs", "rollout_logprobs", "advantages"):
        data[name] = torch.randn(rows, RESPONSE, generator=draw) * 0.1
    image = [CHAT.image_token] * MERGED
    for row, (prompt, response) in enumerate(LENGTHS):
        ids = torch.randint(0, 400, (prompt + response,), generator=draw)
        ids[2 : 2 + MERGED] = torch.tensor(image)
        data["sequences"][row, -len(ids) :] = ids
        data["attention_mask"][row, -len(ids) :] = 1
        data["response_mask"][row, -response:] = 1
        data["loss_mask"][row, -response // 2 :] = 1
    pixels = [torch.randn(PATCHES, 1536, generator=draw) for _ in LENGTHS]
    data["pixel_values"] = TensorList(pixels)
    data["image_grid_thw"] = TensorList([torch.tensor([[1, 8, 8]]) for _ in LENGTHS])
    made = TrainingInputBatch(data)
    made.metadata = {"response_length": RESPONSE}
    return made


def worker(kind: type[Any], words: list[str]) -> Any:
    (run,) = configs.typed(["engine=skyrl", *words])
    made = object.__new__(kind)
    made.cfg = settings(skyrl.overrides(run)).trainer
    torch.manual_seed(0)
    made.model = HFModelWrapper(
        TINY, bf16=False, lora_rank=4, target_modules=["q_proj", "v_proj"], exclude_modules=".*visual.*"
    )
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    made.policy_loss_fn = PolicyLossRegistry.get(made.cfg.algorithm.policy_loss_type)
    made.strategy = SimpleNamespace(backward=lambda loss, model, optimizer: loss.backward())
    made.optimizer, made.scheduler = None, SimpleNamespace(get_last_lr=lambda: [0.0])
    made.mesh_rank = SimpleNamespace(dp_size=1)
    return made


@pytest.mark.parametrize("words", [[], ["algorithm=gspo"]])
def test_an_update_without_padding_has_the_loss_and_the_gradients_of_one_with_it(words: list[str]) -> None:
    said, gradients = [], []
    for kind in (FSDPPolicyWorkerBase, UnpaddedPolicyWorker):
        made = worker(kind, words)
        experience = BaseBatchIterator.batch_to_experience(batch())
        seen: list[tuple[int, ...]] = []
        made.model.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(tuple(given[0].shape)))
        status = made._forward_backward_micro(experience, 1.0)
        assert seen == [(3, 70 if kind is UnpaddedPolicyWorker else WIDTH)]
        status.pop("response_length")
        said.append(status)
        gradients.append({n: p.grad.clone() for n, p in made.model.named_parameters() if p.grad is not None})
    theirs, ours = said
    outputs = [[row["logprobs"] for row in each.pop("loss_fn_outputs")] for each in (theirs, ours)]
    for their, our, (_, response) in zip(*outputs, LENGTHS, strict=True):
        assert len(our) == response
        assert our == pytest.approx(their, abs=1e-4)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) == 8
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0
        assert torch.allclose(gradients[1][name], gradient, atol=1e-4), name


def test_log_probabilities_without_padding_are_those_with_it_where_a_row_has_a_response() -> None:
    theirs, ours = (
        torch.cat([made._forward_micro_batch(row)["output"] for row in batch().chunk(1)])
        for made in (worker(FSDPPolicyWorkerBase, []), worker(UnpaddedPolicyWorker, []))
    )
    assert ours.shape == theirs.shape == (3, RESPONSE)
    mask = batch()["response_mask"].bool()
    assert torch.allclose(ours[mask], theirs[mask], atol=1e-4)


def test_a_response_is_never_as_wide_as_what_is_left_of_its_row() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    assert cut(mask, response=2) == (3, 2)
    assert cut(mask, response=4) == (3, 2)
