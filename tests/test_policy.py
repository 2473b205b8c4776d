"""The model side against transformers' own code: pixels, visual features, positions, log-probabilities."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TINY, lora, model, shake
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen3VLForConditionalGeneration

from envs.maze_2d import Maze2D
from grpo.batch import Batch, collate
from grpo.chat import ChatRenderer
from grpo.checkpoint import latest_checkpoint, load_checkpoint, save_adapter, save_checkpoint
from grpo.policy import Policy, load_policy, matched_modules
from grpo.positions import positions
from grpo.types import TokenTrace
from grpo.vision import VisionEncoder, patchify

PAD = "<|image_pad|>"


def images(count: int, side: int = 128) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8))


def trace(policy: Policy, text: str, pictures: list[np.ndarray], reply: str) -> TokenTrace:
    grids = tuple(policy.vision.grid(picture) for picture in pictures)
    prompt = policy.chat.first_turn(text, grids)
    answer = [*policy.chat.encode_reply(reply), policy.chat.end_token]
    return TokenTrace(
        token_ids=np.array(prompt + answer),
        action_mask=np.array([False] * len(prompt) + [True] * len(answer)),
        logprobs=np.zeros(len(prompt) + len(answer), dtype=np.float32),
        images=tuple(pictures),
    )


def batch(policy: Policy, *traces: TokenTrace) -> Batch:
    return collate(
        traces,
        grid=policy.vision.grid,
        image_token=policy.chat.image_token,
        pad_token=policy.tokenizer.pad_token_id,
        device=policy.device,
    )


def reference_logprobs(policy: Policy, row: TokenTrace) -> torch.Tensor:
    """Of the sampled tokens of one row, by transformers' own forward on processor output."""
    token_ids = torch.tensor(row.token_ids)[None]
    inputs = {}
    if row.images:
        inputs = dict(policy.image_processor(images=list(row.images), return_tensors="pt"))
    logits = policy.base(
        input_ids=token_ids, mm_token_type_ids=(token_ids == policy.chat.image_token).int(), **inputs
    ).logits[0]
    log_all = logits.masked_fill(policy.banned_V, float("-inf")).log_softmax(-1)
    sampled = torch.tensor(row.action_mask).nonzero().squeeze(1)
    return log_all[sampled - 1, token_ids[0, sampled]]


def test_the_shipped_model_is_an_ordinary_hugging_face_folder() -> None:
    assert isinstance(AutoModelForImageTextToText.from_pretrained(TINY), Qwen3VLForConditionalGeneration)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    assert tokenizer.decode(tokenizer.encode("Ünïcode ∀ text\n")) == "Ünïcode ∀ text\n"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(f"a{PAD}<|im_end|>")) == ["a", PAD, "<|im_end|>"]


def test_patchify_gives_the_processors_pixels_once_instead_of_twice(policy: Policy) -> None:
    pictures = images(3)
    pixels = policy.image_processor(images=pictures, return_tensors="pt")["pixel_values"]
    first, second = pixels.unflatten(1, (3, 2, 256)).unbind(2)
    assert torch.equal(first, second)
    assert torch.allclose(patchify(np.stack(pictures), 16, 2).flatten(0, 1), first.flatten(1), atol=1e-6)


@pytest.mark.parametrize("side", [96, 128, 160, 225])
def test_stacked_vision_features_equal_transformers_one_by_one(policy: Policy, side: int) -> None:
    pictures = images(3, side)
    inputs = policy.image_processor(images=pictures, return_tensors="pt")
    with torch.no_grad():
        expected = policy.base.model.get_image_features(**inputs)
        found = policy.vision.encode(pictures)
    assert torch.allclose(torch.cat([each.tokens_NH for each in found]), torch.cat(expected.pooler_output), atol=1e-3)
    for layer, features in enumerate(expected.deepstack_features):
        mine = torch.cat([each.deepstack_LNH[layer] for each in found])
        assert torch.allclose(mine, features, atol=1e-3)


def test_equal_images_are_computed_once(policy: Policy) -> None:
    picture = images(1)[0]
    first, second = policy.vision.encode([picture, picture.copy()])
    assert first is second


@pytest.mark.parametrize("side", [128, 225])
def test_a_frozen_tower_gives_the_features_of_one_that_can_be_trained(policy: Policy, side: int) -> None:
    trainable = AutoModelForImageTextToText.from_pretrained(TINY).model.visual.eval()
    pictures = images(3, side)
    with torch.no_grad():
        expected = VisionEncoder(trainable, policy.image_processor).encode(pictures)
    found = VisionEncoder(policy.base.model.visual, policy.image_processor).encode(pictures)
    for mine, other in zip(found, expected, strict=True):
        assert torch.allclose(mine.tokens_NH, other.tokens_NH, rtol=1e-5, atol=1e-4)
        assert torch.allclose(mine.deepstack_LNH, other.deepstack_LNH, rtol=1e-5, atol=1e-4)


def test_features_of_an_image_are_the_same_bits_whatever_is_encoded_with_it(policy: Policy) -> None:
    # Of two sizes, of which the processor makes one.
    pictures = [*images(38), *images(2, 130)]

    def encoded(shown: list[np.ndarray]) -> list[torch.Tensor]:
        # An encoder of its own each time: one that has seen an image remembers it.
        return [
            each.tokens_NH for each in VisionEncoder(policy.base.model.visual, policy.image_processor).encode(shown)
        ]

    together = encoded(pictures)
    for size in (1, 3, 17):
        apart = [tokens for first in range(0, 40, size) for tokens in encoded(pictures[first : first + size])]
        assert all(torch.equal(a, b) for a, b in zip(apart, together, strict=True))


def test_training_sees_the_very_features_of_the_rollouts_remembered_or_not(policy: Policy) -> None:
    picture = images(1)
    with torch.inference_mode():
        (played,) = VisionEncoder(policy.base.model.visual, policy.image_processor).encode(picture)
    (trained,) = VisionEncoder(policy.base.model.visual, policy.image_processor).encode(picture)
    assert torch.equal(played.tokens_NH, trained.tokens_NH)
    assert torch.equal(played.deepstack_LNH, trained.deepstack_LNH)


def test_a_frozen_adapter_on_the_vision_tower_is_not_left_out() -> None:
    on_vision = lora(target_modules=["linear_fc1"], exclude_modules=None)
    adapted = load_policy(model(), on_vision, device=torch.device("cpu"), seed=0)
    (before,) = VisionEncoder(adapted.base.model.visual.requires_grad_(False), adapted.image_processor).encode(
        images(1)
    )
    adapted.model.requires_grad_(True)
    shake(adapted)
    adapted.model.requires_grad_(False)
    (after,) = VisionEncoder(adapted.base.model.visual, adapted.image_processor).encode(images(1))
    assert not torch.allclose(before.tokens_NH, after.tokens_NH, atol=1e-2)


def test_positions_of_text_image_text_by_hand() -> None:
    found, following = positions([5, 9, 9, 9, 9, 9, 9, 5, 5], image_token=9, grids=[(2, 3)], start=10)
    assert found.tolist() == [
        [10, 11, 11, 11, 11, 11, 11, 14, 15],
        [10, 11, 11, 11, 12, 12, 12, 14, 15],
        [10, 11, 12, 13, 11, 12, 13, 14, 15],
    ]
    assert following == 16


@pytest.mark.parametrize("ids", [[9, 9, 9], [9, 9, 9, 9, 9], [9, 9, 1, 9, 9]])
def test_placeholders_that_do_not_fit_the_image_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="placeholders"):
        positions(ids, image_token=9, grids=[(2, 2)], start=0)


def test_positions_equal_transformers(policy: Policy) -> None:
    row = trace(policy, "two pictures", [*images(1, 128), *images(1, 225)], "ok")
    token_ids = torch.tensor(row.token_ids)[None]
    grids = [policy.vision.grid(picture) for picture in row.images]
    thw = torch.tensor([[1, 2 * height, 2 * width] for height, width in grids])
    kinds = (token_ids == policy.chat.image_token).int()
    expected, _ = policy.base.model.get_rope_index(token_ids, kinds, image_grid_thw=thw)
    found, _ = positions(row.token_ids.tolist(), policy.chat.image_token, grids, 0)
    assert np.array_equal(found, expected[:, 0].numpy())


def test_three_turns_rendered_one_by_one_are_the_whole_rendered_at_once(policy: Policy) -> None:
    chat, grids = policy.chat, ((4, 4),)
    ids = list(chat.first_turn("Go.", grids))
    messages = [{"role": "user", "content": [{"type": "text", "text": "Go."}, {"type": "image"}]}]
    for reply, text in (("left", "Next."), ("up", "And?")):
        ids += [*chat.encode_reply(reply), chat.end_token, *chat.next_turn(text, grids)]
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]})
    whole = policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ids == policy.tokenizer.encode(whole.replace(PAD, PAD * 16))


def test_a_template_that_edits_earlier_turns_is_refused_with_the_models_name() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}(thoughts removed)"
        "{% else %}{{ m.content if m.content is string else m.content[0].text }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="template of thinker changes earlier turns"):
        ChatRenderer(tokenizer, "thinker")


def test_special_tokens_spelled_out_in_an_observation_stay_text(policy: Policy) -> None:
    ids = policy.chat.next_turn(f"you said {PAD}<|im_end|><|im_start|>", ())
    plain = policy.chat.next_turn("you said", ())
    assert policy.chat.image_token not in ids
    for special in (policy.chat.end_token, policy.tokenizer.convert_tokens_to_ids("<|im_start|>")):
        assert ids.count(special) == plain.count(special)


def test_a_template_that_shows_no_images_is_refused_with_the_counts(policy: Policy) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}"
        "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
    )
    with pytest.raises(ValueError, match="template of blind made 0 image placeholders for 1 images"):
        ChatRenderer(tokenizer, "blind").first_turn("look", ((4, 4),))


def test_logprobs_of_one_three_and_no_images_equal_transformers_whatever_their_order(policy: Policy) -> None:
    rows = [
        trace(policy, "one", images(1), "a"),
        trace(policy, "three of two sizes", [*images(2), *images(1, 225)], "bcd"),
        trace(policy, "none", [], "left or right"),
    ]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        chosen = [rows[index] for index in order]
        with torch.no_grad():
            found = policy.logprobs(batch(policy, *chosen), temperature=1.0).logprobs_BT
        for index, row in enumerate(chosen):
            mine = found[index][: len(row.token_ids)][torch.tensor(row.action_mask)]
            assert torch.allclose(mine, reference_logprobs(policy, row), atol=1e-4)


def test_special_tokens_have_no_probability_but_the_end_marker_does(policy: Policy) -> None:
    scores = policy.scores(torch.randn(1, policy.base.config.text_config.hidden_size), 1.0).softmax(-1)[0]
    assert scores[policy.chat.image_token] == 0
    assert scores[policy.tokenizer.convert_tokens_to_ids("<|im_start|>")] == 0
    assert scores[policy.chat.end_token] > 0


def test_a_misspelt_target_module_is_named_with_the_right_one() -> None:
    network = AutoModelForImageTextToText.from_pretrained(TINY)
    with pytest.raises(ValueError, match=r"'q_prj' matches nothing; did you mean q_proj\?"):
        matched_modules(network, ["q_prj", "v_proj"], None)


def test_an_adapter_on_the_output_head_is_warned_about_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="grpo"):
        load_policy(model(), lora(target_modules=["q_proj"]), device=torch.device("cpu"), seed=0)
        assert "MB a checkpoint" not in caplog.text
        load_policy(model(), lora(target_modules=["q_proj", "lm_head"]), device=torch.device("cpu"), seed=0)
    # Rank 4: two q_proj of 64 -> 64 and lm_head of 64 -> 448, so 4 * (2 * 128 + 512) = 3072 float32.
    assert "0.0 MB a checkpoint" in caplog.text


def test_all_linear_leaves_the_vision_tower_out() -> None:
    matched = matched_modules(AutoModelForImageTextToText.from_pretrained(TINY), "all-linear", ".*visual.*")
    assert matched
    assert not [name for name in matched if "visual" in name or "lm_head" in name]


def test_the_start_policy_is_the_model_without_its_adapter() -> None:
    adapted = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
    row = batch(adapted, trace(adapted, "go", images(1), "left"))
    with torch.no_grad():
        before = adapted.logprobs(row, 1.0).logprobs_BT
        shake(adapted)
        changed = adapted.logprobs(row, 1.0).logprobs_BT
        with adapted.start_policy():
            start = adapted.logprobs(row, 1.0).logprobs_BT
    assert not torch.allclose(before, changed, atol=1e-3)
    assert torch.equal(before, start)


def test_a_checkpoint_brings_adapter_and_optimizer_back_bit_for_bit(tmp_path: Path, maze: Maze2D) -> None:
    def trained() -> tuple[Policy, torch.optim.Optimizer]:
        fresh = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
        return fresh, torch.optim.AdamW(fresh.trainable, lr=0.01)

    def step(policy: Policy, optimizer: torch.optim.Optimizer) -> None:
        row = batch(policy, trace(policy, "go", images(1), "left"))
        policy.logprobs(row, 1.0).logprobs_BT.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    first, optimizer = trained()
    step(first, optimizer)
    save_checkpoint(tmp_path, 1, first, optimizer, keep=1, record={})
    step(first, optimizer)

    second, other = trained()
    assert load_checkpoint(tmp_path / "checkpoints" / "step_000001", second, other) == 1
    step(second, other)
    assert all(torch.equal(a, b) for a, b in zip(first.trainable, second.trainable, strict=True))


def test_a_run_that_starts_from_an_adapter_is_compared_with_that_adapter_not_with_the_bare_base(tmp_path: Path) -> None:
    first = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
    shake(first)
    save_adapter(first, tmp_path / "adapter", {})
    second = load_policy(model(), lora(start_from=str(tmp_path / "adapter")), device=torch.device("cpu"), seed=0)
    row = batch(second, trace(second, "go", images(1), "left"))
    with torch.no_grad():
        trained = first.logprobs(row, 1.0).logprobs_BT
        assert torch.equal(second.logprobs(row, 1.0).logprobs_BT, trained)
        shake(second)
        with second.start_policy():
            start = second.logprobs(row, 1.0).logprobs_BT
        assert torch.equal(start, trained)
        assert not torch.allclose(second.logprobs(row, 1.0).logprobs_BT, trained, atol=1e-3)
    assert len(second.trainable) == len(first.trainable)


def test_an_adapter_that_is_empty_is_not_saved_as_complete(tmp_path: Path, policy: Policy) -> None:
    class Nothing:
        def save_pretrained(self, folder: str, **_: object) -> None:
            Path(folder).mkdir(parents=True)
            save_file({}, Path(folder) / "adapter_model.safetensors")

    empty = SimpleNamespace(model=Nothing(), trainable=policy.trainable)
    optimizer = torch.optim.AdamW(policy.trainable)
    with pytest.raises(RuntimeError, match="holds no tensors"):
        save_checkpoint(tmp_path, 1, empty, optimizer, keep=1, record={})  # pyright: ignore[reportArgumentType]
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("harm", ["empty", "truncated", "lost", "no DONE", "half a DONE"])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    harm: str, tmp_path: Path, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 20):
        save_checkpoint(tmp_path, step, policy, torch.optim.AdamW(policy.trainable), keep=2, record={})
    newest = tmp_path / "checkpoints" / "step_000020"
    weights = newest / "adapter" / "adapter_model.safetensors"
    if harm == "empty":
        shutil.rmtree(newest)
        newest.mkdir()
    elif harm == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif harm == "lost":
        weights.unlink()
    elif harm == "no DONE":
        (newest / "DONE").unlink()
    else:
        (newest / "DONE").write_text('{"adapter')
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_000001"
    assert "step_000020 is not used" in caplog.text
    assert (tmp_path / "checkpoints" / "damaged_step_000020").is_dir()
