"""Plays episodes against an OpenAI-compatible endpoint: chat completions with the images inline.

The server renders the whole conversation at every turn and shows no token ids, so what is played here can be judged
but not trained on. Send the server's own sampling defaults away where it has some (vLLM: --generation-config vllm).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from json import JSONDecodeError
from typing import Any

import numpy as np

from grpo.conversation import Sampling
from grpo.interfaces import Env
from grpo.openai_content import messages
from grpo.playing import Play, begin
from grpo.randomness import seed as seed_of
from grpo.rollout import Progress
from grpo.types import Observation, Rollout, Task, TokenTrace

AT_ONCE = 16
"""Episodes in flight; a server batches what arrives together."""
TRIES = 5
TIMEOUT_SECONDS = 300.0
LONGEST = 500
"""Characters of a server's answer in an error."""

_NO_TRACE = TokenTrace(
    token_ids=np.zeros(0, np.int64), action_mask=np.zeros(0, bool), logprobs=np.zeros(0, np.float32), images=()
)


class EndpointError(RuntimeError):
    """A server gave up, or was given up, in the middle of an episode."""


class Endpoint:
    """`url` ends in /v1, as the servers print it; the key, if one is needed, is OPENAI_API_KEY in the environment."""

    def __init__(self, url: str) -> None:
        from openai import OpenAI

        self._client = OpenAI(
            base_url=url,
            api_key=os.environ.get("OPENAI_API_KEY", "none"),
            max_retries=TRIES - 1,
            timeout=TIMEOUT_SECONDS,
        )

    def check(self, model: str) -> None:
        """Does the server answer to this name? Raises ValueError with its reason, OpenAIError where nobody answers.

        Its list of models does not decide: `transformers serve` lists what lies in its cache, others list nothing.
        """
        from openai import APIStatusError

        try:
            listed = sorted(known.id for known in self._client.models.list())
        # What is not in OpenAI's form breaks inside openai; the question below gets its words.
        except (APIStatusError, AttributeError, TypeError, ValueError):
            listed = []
        if model in listed:
            return
        try:
            _read(
                self._client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "?"}], temperature=0.0, seed=0, max_tokens=1
                )
            )
        except (APIStatusError, ValueError) as error:
            names = ", ".join(listed) or "nothing"
            raise ValueError(
                f"{self._client.base_url} does not serve {model} ({_words(error)}); it lists {names}; give what it "
                "serves as --model"
            ) from error

    def play(
        self,
        model: str,
        env: Env,
        tasks: Sequence[Task],
        *,
        siblings: int,
        sampling: Sampling,
        purpose: tuple[str | int, ...],
        progress: Progress,
    ) -> list[Rollout]:
        """`siblings` rollouts of each task, in order. Raises EndpointError once a request failed `TRIES` times."""
        plays = [begin(env, task, sample) for task in tasks for sample in range(siblings)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [
                pool.submit(
                    self._finish,
                    model,
                    play,
                    env.max_turns,
                    sampling,
                    lambda turn, p=play: seed_of(*purpose, p.task.id, p.sample, turn),
                )
                for play in plays
            ]
            try:
                for done, future in enumerate(as_completed(futures), start=1):
                    future.result()
                    progress(done, len(plays))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return [_rollout(play) for play in plays]

    def _finish(self, model: str, play: Play, max_turns: int, sampling: Sampling, seed: Callable[[int], int]) -> None:
        """Play one episode to its end."""
        from openai import BadRequestError, OpenAIError

        said: list[Any] = []
        shown: Observation | None = play.observation
        while shown is not None:
            said += messages(shown)
            try:
                answer = self._client.chat.completions.create(
                    model=model,
                    messages=said,
                    temperature=0.0 if sampling.greedy else sampling.temperature,
                    top_p=1.0,
                    max_tokens=sampling.max_completion_tokens,
                    seed=seed(len(play.turns)) % 2**31,
                )
                text, tokens, cut = _read(answer)
            except BadRequestError as error:
                if "context length" not in _words(error) or not play.turns:
                    raise self._failed(play, error) from error
                return  # play.stop says token_limit until something else ends it
            except (OpenAIError, ValueError) as error:
                raise self._failed(play, error) from error
            said.append({"role": "assistant", "content": text})
            shown = play.take(text, completion_tokens=tokens, truncated=cut, max_turns=max_turns)

    def _failed(self, play: Play, error: Exception) -> EndpointError:
        return EndpointError(
            f"{self._client.base_url} failed at task {play.task.id}, turn {len(play.turns) + 1}: {_words(error)}"
        )


def _read(answer: Any) -> tuple[str, int, bool]:
    """(reply, its tokens, whether it was cut); no reply at all is an empty one. Raises ValueError for other content.

    openai checks nothing of this: what is not JSON arrives as text, and what the JSON lacks as None.
    """
    try:
        choice = answer.choices[0]
        text, cut = choice.message.content, choice.finish_reason == "length"
        tokens = answer.usage.completion_tokens if answer.usage else None
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"wanted a chat completion, got {str(answer)[:LONGEST]!r}") from error
    if not isinstance(text, str | None):
        raise ValueError(f"wanted a chat completion whose content is a text, got {str(text)[:LONGEST]!r}")
    return text or "", tokens or 0, cut


def _words(error: Exception) -> str:
    """What the server said; openai's own message leaves out what is not in OpenAI's form."""
    from openai import APIStatusError

    if isinstance(error, APIStatusError):
        return f"{error.status_code}: {error.response.text[:LONGEST]}"
    return f"its answer is not JSON ({error})" if isinstance(error, JSONDecodeError) else str(error)


def _rollout(play: Play) -> Rollout:
    transcript, final_text = play.finish()
    return Rollout(transcript=transcript, sample=play.sample, trace=_NO_TRACE, final_text=final_text, drift=0)
