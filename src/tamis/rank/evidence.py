"""The passages that a document's score comes from, completed to whole sentences for people to read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tamis.core.ranking import Span
from tamis.text.segment import Passage, sentences, trimmed

_LONGEST = 1_000  # characters of a sentence by which a passage is completed


def whole_sentences(text: str, spans: Sequence[Span]) -> list[Span]:
    """The passages of a text, best first, each extended to the whole sentences in which it begins and ends. A
    sentence that two passages share is shown with the better one. The scores are those of the original
    passages.

    >>> text = "Soup is hot. A tamis is a fine sieve. Onions are sweet."
    >>> [text[start:stop] for start, stop, _ in whole_sentences(text, [Span(15, 26, 0.9)])]
    ['A tamis is a fine sieve.']
    """
    shown = apart(spans, [grown(span, _around(text, span)) for span in spans])
    return [Span(*trimmed(text, start, stop), score) for start, stop, score in shown]


def grown(span: Span, among: Sequence[Passage]) -> Span:
    """A passage extended to the whole sentences in which it begins and ends, if they are among these.

    >>> grown(Span(15, 26, 0.9), [Passage(0, 12), Passage(13, 37)])
    Span(start=13, stop=37, score=0.9)
    """
    starts = [each.start for each in among]
    first, last = bisect_right(starts, span.start) - 1, bisect_left(starts, span.stop) - 1
    start, stop, score = span
    if first >= 0 and start < among[first].stop:
        start = among[first].start
    if last >= 0:
        stop = max(stop, among[last].stop)
    return Span(start, stop, score)


def apart(spans: Sequence[Span], completed: Sequence[Span]) -> list[Span]:
    """The completed passages, best first, without the parts that a better one contains too. The original
    passages do not overlap: each stays on its side of the others, however far it was extended.

    >>> apart([Span(10, 18, 0.9), Span(22, 30, 0.8)], [Span(10, 24, 0.9), Span(16, 35, 0.8)])
    [Span(start=10, stop=24, score=0.9), Span(start=24, stop=35, score=0.8)]
    """
    found: list[tuple[Span, Span]] = []
    for span, (start, stop, score) in zip(spans, completed, strict=True):
        for better, shown in found:
            if span.start < better.start:
                stop = min(stop, shown.start)
            else:
                start = max(start, shown.stop)
        if start < stop:
            found.append((span, Span(start, stop, score)))
    return [shown for _, shown in found]


def _around(text: str, span: Span) -> list[Passage]:
    """The sentences in which a passage may begin and end; the whole text, which may be a book, is not
    split."""
    left, right = max(0, span.start - _LONGEST), min(len(text), span.stop + _LONGEST)
    near = [Passage(left + start, left + stop) for start, stop in sentences(text[left:right])]
    # a sentence at an end of this part may continue beyond it
    return near[left > 0 : len(near) - (right < len(text))]
