"""Reads `<tag>…</tag>` sections out of a reply.

Plain text search and no regular expression: a reply is hostile input of any length, and this stays linear in it.
"""

from __future__ import annotations


def section(text: str, tag: str) -> tuple[int, int] | None:
    """Where the content of the one `<tag>…</tag>` in `text` begins and ends.

    None unless the tag opens exactly once and closes exactly once, after it: of two answers none is the answer.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.index(opening) + len(opening), text.index(closing)
    return (start, end) if start <= end else None
