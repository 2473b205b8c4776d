"""The vision-language model that is trained: load it, give it its adapter, and ask it for log-probabilities.

Only the language model is adapted by default, so the vision tower's features of an image never change and are
remembered (grpo.vision). Special tokens other than the end marker are masked out wherever probabilities are formed:
an untrained policy does emit `<|image_pad|>`, and a sequence that holds one cannot be trained on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpo import adapter as adapters
from grpo import model_folder
from grpo.batch import Batch
from grpo.chat import ChatRenderer
from grpo.config import AdapterConfig, ModelConfig
from grpo.faults import ConfigError, Fault
from grpo.paths import model_path
from grpo.schema import LoraAdapter
from grpo.targets import unmatched
from grpo.vision import Features, VisionEncoder

log = logging.getLogger(__name__)

START_ADAPTER = "start"
"""Name of the frozen copy of the adapter that a run starts from."""
LARGE_SHARE = 0.25
"""An adapter above this share of the parameters is hardly one."""


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """Of the sampled tokens only; everywhere else 0."""

    logprobs_BT: Tensor
    """logprobs_BT[:, t] is that of token t given the ones before it."""
    entropy_BT: Tensor


class Policy:
    """A Qwen3-VL with its tokenizer and image processor, on one device."""

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any, *, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        inner: Any = model.get_base_model() if _is_adapted(model) else model
        self.base = inner
        self.language: Any = inner.model.language_model
        self.chat = ChatRenderer(tokenizer, name)
        self.vision = VisionEncoder(inner.model.visual, image_processor)
        self.device = next(model.parameters()).device
        banned = [token for token in tokenizer.all_special_ids if token != self.chat.end_token]
        self.banned_V = torch.zeros(inner.config.text_config.vocab_size, dtype=torch.bool, device=self.device)
        # A model's embedding may have more rows than the tokenizer has tokens; those are no tokens either.
        self.banned_V[len(tokenizer) :] = True
        self.banned_V[banned] = True

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @contextmanager
    def start_policy(self) -> Iterator[None]:
        """Within this context the model answers as it did before training.

        That is without its adapter, or with the adapter that the run started from.
        """
        if START_ADAPTER in getattr(self.model, "peft_config", {}):
            self.model.set_adapter(START_ADAPTER)
            try:
                yield
            finally:
                self.model.set_adapter("default")
        else:
            with self.model.disable_adapter() if _is_adapted(self.model) else nullcontext():
                yield

    @contextmanager
    def training_mode(self, seed: int) -> Iterator[None]:
        """Within this context adapter dropout and gradient checkpointing are active; `seed` decides the dropout."""
        torch.manual_seed(seed)
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()

    def logprobs(self, batch: Batch, temperature: float) -> TokenLogprobs:
        """Log-probabilities of a batch's sampled tokens, at the temperature that they were sampled with."""
        hidden_BTH = self.hidden(batch)
        rows, columns = batch.action_mask_BT.nonzero(as_tuple=True)
        scores_NV = self.scores(hidden_BTH[rows, columns - 1], temperature)
        log_all_NV = scores_NV.log_softmax(dim=-1)
        chosen_N = log_all_NV.gather(1, batch.token_ids_BT[rows, columns, None]).squeeze(1)
        # Banned tokens have probability 0 and log-probability -inf, whose product would be NaN.
        entropy_N = -(log_all_NV.exp() * log_all_NV.masked_fill(self.banned_V, 0.0)).sum(dim=-1)
        where = (rows, columns)
        blank_BT = torch.zeros(batch.action_mask_BT.shape, dtype=chosen_N.dtype, device=chosen_N.device)
        return TokenLogprobs(
            logprobs_BT=blank_BT.index_put(where, chosen_N),
            entropy_BT=blank_BT.index_put(where, entropy_N.detach()),
        )

    def hidden(self, batch: Batch) -> Tensor:
        """Last hidden states [B, T, H] of right-padded rows."""
        embeds_BTH, is_image_BT, deepstack = self.embed(batch.token_ids_BT, batch.images)
        output = self.language(
            inputs_embeds=embeds_BTH,
            position_ids=batch.positions_3BT,
            # Padding is on the right, where causal attention never looks from a real token.
            attention_mask=None,
            visual_pos_masks=is_image_BT if deepstack else None,
            deepstack_visual_embeds=deepstack or None,
            use_cache=False,
        )
        return output.last_hidden_state

    def embed(self, token_ids_BT: Tensor, images: Sequence[Any]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Token embeddings with the visual tokens of `images` (row by row, in order) put into their places.

        Returns embeddings [B, T, H], the mask of visual tokens [B, T], and deepstack features, one [M, H] a layer.
        """
        embeds_BTH = self.language.embed_tokens(token_ids_BT)
        is_image_BT = token_ids_BT == self.chat.image_token
        if not images:
            return embeds_BTH, is_image_BT, []
        features: list[Features] = self.vision.encode(images)
        tokens_MH = torch.cat([each.tokens_NH for each in features]).to(embeds_BTH.dtype)
        deepstack_LMH = torch.cat([each.deepstack_LNH for each in features], dim=1)
        placeholders = int(is_image_BT.sum())
        if placeholders != len(tokens_MH):
            raise ValueError(f"{placeholders} image placeholders in the batch, but its images have {len(tokens_MH)}")
        embeds_BTH = embeds_BTH.masked_scatter(is_image_BT[..., None], tokens_MH)
        return embeds_BTH, is_image_BT, list(deepstack_LMH)

    def scores(self, hidden_NH: Tensor, temperature: float) -> Tensor:
        """What the next token is drawn from, before the softmax: logits over temperature, banned tokens at -inf."""
        logits_NV = self.base.lm_head(hidden_NH).float() / temperature
        return logits_NV.masked_fill(self.banned_V, float("-inf"))


def load_policy(model: ModelConfig, adapter: AdapterConfig, *, device: torch.device, seed: int) -> Policy:
    """The configured model with a fresh adapter, on `device`.

    Raises ConfigError if there is no such model, if the target modules match nothing, and if the adapter to start from
    does not fit.
    A new adapter's weights depend on `seed` alone.
    """
    from transformers import AutoModelForImageTextToText, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # its bars would cut through ours
    faults = model_folder.faults(model.name_or_path)
    if faults:
        raise ConfigError(faults)
    path = model_path(model.name_or_path)
    source: dict[str, Any] = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **source)
        # Safetensors alone: other weights are pickles.
        network: Any = AutoModelForImageTextToText.from_pretrained(
            path, dtype=getattr(torch, model.dtype), use_safetensors=True, **source
        )
    except OSError as error:  # transformers' word for what is neither a folder nor to be had from the hub
        told = f"{model.name_or_path!r} is no folder here and cannot be had from the hub: {str(error).splitlines()[0]}"
        raise ConfigError([Fault(key="model.name_or_path", problem=told)]) from error
    network.to(device).requires_grad_(False)
    if model.gradient_checkpointing:
        network.gradient_checkpointing_enable()
        network.enable_input_require_grads()
    if adapter.type == "lora":
        network = _adapted(network, adapter, seed)
    processor = load_image_processor(path, model.revision)
    return Policy(network, tokenizer, processor, name=model.name_or_path)


def _adapted(network: Any, adapter: LoraAdapter, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    if adapter.start_from is not None:
        start = Path(adapter.start_from)
        adapted = adapters.add(network, start, name="default", trainable=True)
        adapted = adapters.add(adapted, start, name=START_ADAPTER, trainable=False)
        adapted.set_adapter("default")
        return adapted
    matched = matched_modules(network, adapter.target_modules, adapter.exclude_modules)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=matched,
        task_type="CAUSAL_LM",
    )
    adapted: Any = get_peft_model(network, config)
    trainable, total = adapted.get_nb_trainable_parameters()
    kinds = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in matched}))
    log.info("LoRA on %d modules (%s): %s of %s parameters", len(matched), kinds, f"{trainable:,}", f"{total:,}")
    if trainable > LARGE_SHARE * total or any(name.endswith("lm_head") for name in matched):
        log.warning(
            "the adapter has %.0f %% of all parameters, %.1f MB a checkpoint; a lower adapter.rank, or "
            "adapter.target_modules without lm_head (it grows with the vocabulary), keep it small",
            100 * trainable / total,
            trainable * 4 / 1e6,
        )
    return adapted


def matched_modules(network: nn.Module, targets: str | Sequence[str], exclude: str | None) -> list[str]:
    """Full names of the linear modules that an adapter is put on.

    `targets`: module names, or `all-linear`, or a regular expression over full names. The output head is never
    matched by `all-linear`. Raises ConfigError naming each target that matches nothing, with the nearest right name.
    """
    linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    allowed = [name for name in linear if not (exclude and re.fullmatch(exclude, name))]
    if targets == "all-linear":
        return [name for name in allowed if not name.endswith("lm_head")]
    if isinstance(targets, str):
        matched = [name for name in allowed if re.fullmatch(targets, name)]
        if not matched:
            told = f"{targets!r} matches no linear module of the model"
            raise ConfigError([Fault(key="adapter.target_modules", problem=told)])
        return matched
    found = {target: [name for name in allowed if name == target or name.endswith("." + target)] for target in targets}
    lost = [target for target, names in found.items() if not names]
    if lost:
        known = {name.rsplit(".", 1)[-1] for name in allowed}
        raise ConfigError(unmatched(target, known) for target in lost)
    return [name for names in found.values() for name in names]


def load_image_processor(path: str, revision: str | None) -> Any:
    """The PIL-backed image processor: it needs no torchvision and gives the same pixels."""
    from transformers import Qwen2VLImageProcessorPil

    # Their type says str, their documentation and code take None for the default branch.
    return Qwen2VLImageProcessorPil.from_pretrained(path, revision=revision)  # pyright: ignore[reportArgumentType]


def _is_adapted(model: nn.Module) -> bool:
    from peft import PeftModel

    return isinstance(model, PeftModel)
