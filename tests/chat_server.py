"""A small OpenAI-compatible server on loopback: chat completions with images, answered by the tiny model.

It renders each conversation anew, as servers do, and so shares no code with the local engine's kept cache.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from PIL import Image

from grpo.batch import collate
from grpo.chat import IMAGE_PAD
from grpo.policy import Policy
from grpo.types import TokenTrace


@contextmanager
def serving(policy: Policy, *names: str, failures: int = 0, lists: bool = True) -> Iterator[str]:
    """The address, /v1 included; every name is the same model. The first `failures` completions answer 503.

    Without `lists`, its models are served all the same, but not listed.
    """
    lock, left = threading.Lock(), [failures]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = names if lists else ()
            self._answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in told]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if request["model"] not in names:
                self._answer(404, {"error": {"message": f"The model {request['model']} does not exist."}})
                return
            with lock:
                if left[0] > 0:
                    left[0] -= 1
                    self._answer(503, {"error": {"message": "loading"}})
                    return
                text, tokens, cut = _complete(policy, request)
            choice = {"index": 0, "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
            choices = [choice | {"finish_reason": "length" if cut else "stop"}]
            told = {"id": "1", "object": "chat.completion", "created": 1, "model": request["model"]}
            self._answer(200, told | {"choices": choices, "usage": usage})

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with _running(Handler) as url:
        yield url


@contextmanager
def answering(content: str) -> Iterator[str]:
    """The address of a server that lists the model `tiny` and answers every completion with this text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(content)

        def _answer(self, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if text.startswith("{") else "text/html")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with _running(Handler) as url:
        yield url


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@torch.inference_mode()
def _complete(policy: Policy, request: dict[str, Any]) -> tuple[str, int, bool]:
    """(text, its tokens, whether it was cut)."""
    ids, images = _prompt(policy, request["messages"])
    rng = torch.Generator().manual_seed(request["seed"])
    reply: list[int] = []
    while len(reply) < request["max_tokens"] and (not reply or reply[-1] != policy.chat.end_token):
        trace = TokenTrace(
            token_ids=np.array(ids + reply, dtype=np.int64),
            action_mask=np.zeros(len(ids + reply), dtype=bool),
            logprobs=np.zeros(len(ids + reply), dtype=np.float32),
            images=tuple(images),
        )
        batch = collate(
            [trace],
            grid=policy.vision.grid,
            image_token=policy.chat.image_token,
            pad_token=policy.tokenizer.pad_token_id,
            device=policy.device,
        )
        scores_V = policy.scores(policy.hidden(batch)[0, -1:], request["temperature"] or 1.0)[0]
        greedy = request["temperature"] == 0
        reply.append(int(scores_V.argmax() if greedy else torch.multinomial(scores_V.softmax(-1), 1, generator=rng)))
    return policy.chat.decode(reply), len(reply), reply[-1] != policy.chat.end_token


def _prompt(policy: Policy, messages: list[dict[str, Any]]) -> tuple[list[int], list[np.ndarray]]:
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    images = [_image(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
    text = policy.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    first, *rest = text.split(IMAGE_PAD)
    for image, piece in zip(images, rest, strict=True):
        height, width = policy.vision.grid(image)
        first += IMAGE_PAD * (height * width) + piece
    return policy.tokenizer.encode(first, add_special_tokens=False), images


def _image(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))
