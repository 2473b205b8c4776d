"""What the replies of a step look like, whatever they are worth: the usual ways to please a reward show here first.

Copying and repetition are counted in runs of words and signs, so that the tags and the few words that every honest
reply shares do not count; replies too short for such a run count as 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from grpo.types import Transcript

COPIED_RUN = 8
"""Words and signs in a row that also stand in the prompt; an answer that quotes one of its options is shorter."""
REPEATED_RUN = 4
SHORTEST = 16
"""Words and signs; a shorter reply is neither copied nor repeated."""

# A Chinese sign counts as a word: there are no spaces to tell words by. So does empty space wider than an indent.
_WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+|[^\w\s]|\s{12}")

Words = tuple[str, ...]


def behaviour_metrics(transcripts: Sequence[Transcript]) -> dict[str, float]:
    """`rollout/{reply_tokens,same_reply,two_replies,repeated,copied}`; nothing where no reply was given.

    - reply_tokens: mean tokens of one reply, unlike rollout/completion_tokens, which grows with the turns.
    - same_reply: share of the most frequent action among all replies (the text, where no action was understood).
    - two_replies: share of the two most frequent ones.
    - repeated: mean over the replies of the share of `REPEATED_RUN`-word runs that stood there before.
    - copied: mean over the replies of the share of `COPIED_RUN`-word runs that the prompt holds too.
    """
    turns = [turn for transcript in transcripts for turn in transcript.turns]
    if not turns:
        return {}
    said = Counter(turn.outcome.action or turn.reply.strip() for turn in turns)
    return {
        "rollout/reply_tokens": sum(turn.completion_tokens for turn in turns) / len(turns),
        "rollout/same_reply": max(said.values()) / len(turns),
        "rollout/two_replies": sum(count for _, count in said.most_common(2)) / len(turns),
        "rollout/repeated": sum(repeated(turn.reply) for turn in turns) / len(turns),
        "rollout/copied": sum(map(_copied_in, transcripts)) / len(turns),
    }


def repeated(reply: str) -> float:
    """Share of the runs of `REPEATED_RUN` words that stood in the reply before; 0 for short replies."""
    words = _words(reply)
    if len(words) < SHORTEST:
        return 0.0
    runs = _runs(words, REPEATED_RUN)
    return 1.0 - len(set(runs)) / len(runs)


def copied(reply: str, prompt_runs: set[Words]) -> float:
    """Share of the reply's runs of `COPIED_RUN` words that are among `prompt_runs`; 0 for short replies."""
    words = _words(reply)
    if len(words) < SHORTEST:
        return 0.0
    runs = _runs(words, COPIED_RUN)
    return sum(run in prompt_runs for run in runs) / len(runs)


def runs_of(text: str) -> set[Words]:
    return set(_runs(_words(text), COPIED_RUN))


def _copied_in(transcript: Transcript) -> float:
    """Sum over the replies; each may copy from anything that was shown before it."""
    shown: set[Words] = set()
    total = 0.0
    for turn in transcript.turns:
        shown |= runs_of(turn.observation.text)
        total += copied(turn.reply, shown)
    return total


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _runs(words: Sequence[str], length: int) -> list[Words]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
