"""Exact top-k by dynamic pruning, compiled with numba: block-max MaxScore over windows of documents.

The collection is cut into windows of consecutive documents. The competitive pairs of the blocks give, for
each term and window, a bound on the term's contribution there. The most promising windows are visited first,
so that the k-th best score rises early; a window that cannot reach it is skipped. Inside a window MaxScore
applies (Turtle & Flood 1995): the terms with the smallest bounds, whose sum cannot reach the k-th score, only
complete documents that the other terms bring close enough.

Ties are broken by id, whatever the order of visit, because a hit is one integer (see `tamis.index.hits`).
Contributions are single precision and their sums double, hence exact, so the order of addition does not
matter either. Indices in hot loops are unsigned: numba checks signed ones for negative values. This module
imports numba, so it is imported only when numba is used.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
from __future__ import annotations

import numpy as np
from numba import njit

from tamis.index.postings import BLOCK, TF_CAP

WINDOW = 1 << 15
_SPARSE = 4 * WINDOW  # a block that spans more is bounded posting by posting
_BEST_FIRST = 4  # windows visited best bound first; the others follow in order, which memory likes
_LOOK_UP = 32  # postings a candidate from which it is looked up rather than met in passing

# columns of the term entries
FIRST_BLOCK, LAST_BLOCK, FIRST_POSTING, POSTINGS, FIRST_OVERFLOW, LAST_OVERFLOW = range(6)

u64 = np.uint64


@njit(cache=True)
def joined_ids(numbers, ends, text):
    """The ids of these documents, each with a line end: a thousand ids lie in a thousand places. Too short to
    let another thread have the interpreter's lock: getting it back takes longer."""
    size = np.int64(len(numbers))
    for i in range(len(numbers)):
        size += np.int64(ends[numbers[i] + 1]) - np.int64(ends[numbers[i]])
    joined = np.empty(size, np.uint8)
    at = 0
    for i in range(len(numbers)):
        for j in range(np.int64(ends[numbers[i]]), np.int64(ends[numbers[i] + 1])):
            joined[u64(at)] = text[u64(j)]
            at += 1
        joined[u64(at)] = ord("\n")
        at += 1
    return joined


@njit(cache=True, nogil=True)
def _distance(documents, place, wide, i):
    """The i-th distance of a block."""
    if wide:
        at = place + 2 * i
        return np.int64(documents[u64(at)]) | np.int64(documents[u64(at + 1)]) << 16
    return np.int64(documents[u64(place + i)])


@njit(cache=True, nogil=True)
def _first_at_least(documents, place, wide, count, distance):
    """The first posting of a block at or beyond a distance; a search without unpredictable branches."""
    low = 0
    while count > 0:
        half = (count + 1) >> 1
        low = low + half if _distance(documents, place, wide, low + half - 1) < distance else low
        count -= half
    return low


@njit(cache=True, nogil=True)
def _length(entry, b):
    """How many postings a block has: all but a list's last are full."""
    return min(BLOCK, entry[POSTINGS] - (b - entry[FIRST_BLOCK]) * BLOCK)


@njit(cache=True, nogil=True)
def _value(entry, row, tf, code, posting, overflow_place, overflow_score):
    """The contribution of one posting."""
    if tf != TF_CAP:
        return row[tf, code]
    low, high = entry[FIRST_OVERFLOW], entry[LAST_OVERFLOW]
    while low < high:
        middle = (low + high) >> 1
        if overflow_place[middle] < posting:
            low = middle + 1
        else:
            high = middle
    return overflow_score[low]


@njit(cache=True, nogil=True)
def _key(bits, rank):
    """A hit as one integer, from the bits of its score and the rank of its id."""
    bits = u64(bits)
    descending = bits if bits >> u64(31) else bits ^ u64(0x7FFFFFFF)
    return descending << u64(32) | u64(rank)


@njit(cache=True, nogil=True)
def _bits_of(key):
    """The bits of a hit's score."""
    descending = key >> u64(32)
    return np.uint32(descending if descending >> u64(31) else descending ^ u64(0x7FFFFFFF))


@njit(cache=True, nogil=True)
def _select(keys, size, k):
    """Bring the k smallest keys to the front (quickselect)."""
    low, high = 0, size - 1
    while low < high:
        pivot = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


@njit(cache=True, nogil=True)
def _envelope(bounds, waiting):
    """The bounds, none less than those of a smaller tf or a longer document: rounding can make a formula step
    back by one bit as tf grows or length shrinks."""
    envelope = bounds.copy()
    for t in range(len(envelope)):
        if not waiting.any():
            break
        for tf in range(envelope.shape[1]):
            for norm in range(envelope.shape[2] - 1, -1, -1):
                value = envelope[t, tf, norm]
                if tf:
                    value = max(value, envelope[t, tf - 1, norm])
                if norm + 1 < envelope.shape[2]:
                    value = max(value, envelope[t, tf, norm + 1])
                envelope[t, tf, norm] = value
    return envelope


@njit(cache=True, nogil=True)
def _bound(
    terms,
    table,
    bounds,
    norm_low,
    codes,
    waiting,
    block_first,
    block_place,
    block_pairs,
    pairs,
    documents,
    tfs,
):
    """What each term can add in each window, which of its postings is the first at or beyond each window's
    start, and what each block can add. Not all of it is filled in if the search is given up."""
    count, n_terms = len(codes), len(terms)
    n_windows = (count + WINDOW - 1) // WINDOW
    window_bound = np.zeros((n_terms, n_windows), np.float32)
    window_begin = np.empty((n_terms, n_windows + 1), np.int64)
    n_blocks = 0
    for t in range(n_terms):
        n_blocks += terms[t, LAST_BLOCK] - terms[t, FIRST_BLOCK]
    block_bound = np.empty(n_blocks, np.float32)
    filled = 0
    envelope = _envelope(bounds, waiting)
    for t in range(n_terms):
        if not waiting.any():
            break
        entry = terms[t]
        first, last = entry[FIRST_BLOCK], entry[LAST_BLOCK]
        limit, row, in_window = envelope[t], table[t], window_bound[t]
        window = 0  # the next window whose first posting is wanted
        for b in range(first, last):
            bound = np.float32(0)
            for p in range(block_pairs[b], block_pairs[b + 1]):
                pair = np.int64(pairs[p])
                bound = max(bound, limit[u64(pair >> 8), u64((pair & 255) - norm_low)])
            block_bound[filled] = bound
            filled += 1
            low = np.int64(block_first[b])
            high = np.int64(block_first[b + 1]) if b + 1 < last else np.int64(count)
            place, wide = np.int64(block_place[b] >> u64(1)), block_place[b] & u64(1)
            length = _length(entry, b)
            before = (b - first) * BLOCK
            while window * WINDOW < high:
                start = window * WINDOW - low
                window_begin[t, window] = before + (
                    _first_at_least(documents, place, wide, length, start) if start > 0 else 0
                )
                window += 1
            if high - low <= _SPARSE:
                for w in range(low // WINDOW, (high - 1) // WINDOW + 1):
                    in_window[w] = max(in_window[w], bound)
            else:
                at = entry[FIRST_POSTING] + before
                for i in range(length):
                    d = low + _distance(documents, place, wide, i)
                    tf = tfs[at + i]
                    value = bound if tf == TF_CAP else row[tf, codes[d]]
                    in_window[d // WINDOW] = max(in_window[d // WINDOW], value)
        for w in range(window, n_windows + 1):
            window_begin[t, w] = entry[POSTINGS]
    return window_bound, window_begin, block_bound


@njit(cache=True, nogil=True)
def _order_terms(window_bound, w, order, reach):
    """Put the terms of window w in order, the least bound first, and into reach[i] what the i least can add
    together; how many there are."""
    n_present = 0
    for t in range(len(window_bound)):
        if window_bound[t, w] > 0:
            i = n_present
            while i > 0 and window_bound[order[i - 1], w] > window_bound[t, w]:
                order[i] = order[i - 1]
                i -= 1
            order[i] = t
            n_present += 1
    reach[0] = 0
    for i in range(n_present):
        reach[i + 1] = reach[i] + window_bound[order[i], w]
    return n_present


@njit(cache=True, nogil=True)
def top_k(
    k,
    accumulator,  # float64 (WINDOW,): zero, and left zero
    terms,  # int64 (terms, 6): see the columns above
    table,  # float32 (terms, tfs, codes): contributions
    bounds,  # float32 (terms, tfs, norms): bounds on them
    norm_low,  # the norm of bounds[:, :, 0]
    prior,  # float32 (codes,), or empty
    codes,  # each document's length, as the table's last index
    allowed,  # bool per document, or empty
    id_rank,  # empty where it is the document's number
    overflow_place,
    overflow_score,
    waiting,  # bool: the search is given up when all are false, and what it returns then is of no use
    block_first,
    block_place,
    block_pairs,
    pairs,
    documents,
    tfs,
):
    """The keys of the k best hits, in no order (numpy sorts them faster than compiled code would)."""
    count, n_terms = len(codes), len(terms)
    window_bound, window_begin, block_bound = _bound(
        terms,
        table,
        bounds,
        norm_low,
        codes,
        waiting,
        block_first,
        block_place,
        block_pairs,
        pairs,
        documents,
        tfs,
    )
    n_windows = window_bound.shape[1]
    prior_bound = np.float64(prior.max()) if len(prior) else 0.0
    total = np.zeros(n_windows, np.float64)
    block_offset = np.empty(n_terms, np.int64)  # of a term's first block in block_bound
    offset = 0
    for t in range(n_terms):
        block_offset[t] = offset
        offset += terms[t, LAST_BLOCK] - terms[t, FIRST_BLOCK]
        for w in range(n_windows):
            total[w] += window_bound[t, w]

    keys = np.empty(2 * k + 16, np.uint64)  # hits so far; when full, the k best stay
    size = 0
    worst = u64(0xFFFFFFFFFFFFFFFF)  # the k-th best key
    threshold = np.float32(-np.inf)  # and score
    below = np.float64(-np.inf)  # just under it, so that sums that round up to it are kept
    score_cell = np.empty(1, np.float32)
    bits_cell = score_cell.view(np.uint32)

    candidates = np.empty(WINDOW + 1, np.uint32)
    order, reach = np.empty(n_terms, np.int64), np.empty(n_terms + 1, np.float64)  # see _order_terms
    left = total.copy()  # what windows not yet visited can reach
    for turn in range(_BEST_FIRST + n_windows):
        w = int(np.argmax(left)) if turn < _BEST_FIRST else turn - _BEST_FIRST
        if left[w] == 0 or np.float32(left[w] + prior_bound) < threshold:
            continue
        if not waiting.any():  # here the accumulator is zero; and before any window, the bounds may not be
            return keys[:0]
        left[w] = 0
        start = w * WINDOW
        stop = min(start + WINDOW, count)
        window_codes = codes[start:stop]
        n_present = _order_terms(window_bound, w, order, reach)
        essential = 0
        while essential < n_present and np.float32(reach[essential + 1] + prior_bound) < threshold:
            essential += 1

        # a. documents that hold an essential term
        n_candidates = u64(0)
        alone = essential == n_present - 1
        need = below - reach[essential] - prior_bound
        for i in range(essential, n_present):
            t = order[i]
            entry, row = terms[t], table[t]
            plain = entry[FIRST_OVERFLOW] == entry[LAST_OVERFLOW]
            # a block that falls short even with all that the others can add holds no hit
            least = below - (total[w] - window_bound[t, w]) - prior_bound
            posting, last_posting = window_begin[t, w], window_begin[t, w + 1]
            while posting < last_posting:
                within = posting // BLOCK
                b = entry[FIRST_BLOCK] + within
                begin, end = posting - within * BLOCK, min(BLOCK, last_posting - within * BLOCK)
                posting = (within + 1) * BLOCK
                if block_bound[block_offset[t] + within] < least:
                    continue
                place, wide = np.int64(block_place[b] >> u64(1)), block_place[b] & u64(1)
                at = entry[FIRST_POSTING] + within * BLOCK
                shift = np.int64(block_first[b]) - start
                if plain and not wide and not alone:
                    for j in range(begin, end):
                        d = u64(shift + np.int64(documents[u64(place + j)]))
                        value = row[tfs[u64(at + j)], window_codes[d]]
                        sum_so_far = accumulator[d]
                        # no branch: the slot is written again unless the document is new, and counted once
                        candidates[n_candidates] = d
                        n_candidates += u64((sum_so_far == 0) & (value != 0))
                        accumulator[d] = sum_so_far + value
                else:
                    for j in range(begin, end):
                        d = u64(shift + _distance(documents, place, wide, j))
                        tf = tfs[u64(at + j)]
                        value = _value(
                            entry, row, tf, window_codes[d], at + j, overflow_place, overflow_score
                        )
                        if alone and value < need:
                            continue
                        sum_so_far = accumulator[d]
                        candidates[n_candidates] = d
                        n_candidates += u64((sum_so_far == 0) & (value != 0))
                        accumulator[d] = sum_so_far + value

        # b. complete them with the other terms, the weightiest first, dropping those that fall short
        for i in range(essential - 1, -1, -1):
            need = below - reach[i + 1] - prior_bound
            kept = u64(0)
            for c in range(n_candidates):
                d = candidates[c]
                sum_so_far = accumulator[d]
                enough = sum_so_far >= need
                candidates[kept] = d
                kept += u64(enough)
                accumulator[d] = sum_so_far * enough
            n_candidates = kept
            if not n_candidates:
                break
            t = order[i]
            entry, row = terms[t], table[t]
            plain = entry[FIRST_OVERFLOW] == entry[LAST_OVERFLOW]
            posting, last_posting = window_begin[t, w], window_begin[t, w + 1]
            if n_candidates * _LOOK_UP < last_posting - posting:
                first_here = entry[FIRST_BLOCK] + posting // BLOCK
                last_here = entry[FIRST_BLOCK] + (last_posting - 1) // BLOCK
                b = first_here
                for c in range(n_candidates):
                    d = candidates[c]
                    document = start + np.int64(d)
                    if np.int64(block_first[b]) > document:
                        b = first_here
                    while b < last_here and np.int64(block_first[b + 1]) <= document:
                        b += 1
                    distance = document - np.int64(block_first[b])
                    place, wide = np.int64(block_place[b] >> u64(1)), block_place[b] & u64(1)
                    length = _length(entry, b)
                    j = _first_at_least(documents, place, wide, length, distance)
                    if j < length and _distance(documents, place, wide, j) == distance:
                        at = entry[FIRST_POSTING] + (b - entry[FIRST_BLOCK]) * BLOCK + j
                        accumulator[d] += _value(
                            entry, row, tfs[at], window_codes[d], at, overflow_place, overflow_score
                        )
            else:
                least = below - (total[w] - window_bound[t, w]) - prior_bound
                while posting < last_posting:
                    within = posting // BLOCK
                    b = entry[FIRST_BLOCK] + within
                    begin, end = posting - within * BLOCK, min(BLOCK, last_posting - within * BLOCK)
                    posting = (within + 1) * BLOCK
                    if block_bound[block_offset[t] + within] < least:
                        continue
                    place, wide = np.int64(block_place[b] >> u64(1)), block_place[b] & u64(1)
                    at = entry[FIRST_POSTING] + within * BLOCK
                    shift = np.int64(block_first[b]) - start
                    if plain and not wide:
                        for j in range(begin, end):
                            d = u64(shift + np.int64(documents[u64(place + j)]))
                            sum_so_far = accumulator[d]
                            # no branch: whether a posting's document is a candidate cannot be foreseen
                            value = np.float64(row[tfs[u64(at + j)], window_codes[d]])
                            accumulator[d] = sum_so_far + value * (sum_so_far != 0)
                    else:
                        for j in range(begin, end):
                            d = u64(shift + _distance(documents, place, wide, j))
                            if accumulator[d] != 0:
                                tf = tfs[u64(at + j)]
                                accumulator[d] += _value(
                                    entry, row, tf, window_codes[d], at + j, overflow_place, overflow_score
                                )

        # c. what is complete competes
        need = below - prior_bound
        for c in range(n_candidates):
            d = candidates[c]
            score = accumulator[d]
            accumulator[d] = 0
            if score < need or score == 0:
                continue
            document = start + np.int64(d)
            score_cell[0] = np.float32(score + prior[window_codes[d]] if len(prior) else score)
            if len(allowed) and not allowed[document]:
                continue
            key = _key(bits_cell[0], id_rank[document] if len(id_rank) else np.uint32(document))
            if key >= worst:
                continue
            keys[size] = key
            size += 1
            if size == len(keys):
                _select(keys, size, k)
                size = k
                worst = keys[:k].max()
                bits_cell[0] = _bits_of(worst)
                threshold = score_cell[0]
                below = np.float64(np.nextafter(threshold, np.float32(-np.inf)))
                need = below - prior_bound
    _select(keys, size, k)
    return keys[: min(size, k)]


@njit(cache=True)
def find_ids(wanted, line_ends, text, ends, order):
    """The documents whose ids are the lines of `wanted`, or -1; `order` is empty where they lie sorted. All
    lines are searched for in step, so that they wait for memory together and not one after the other."""
    found = np.full(len(line_ends), -1, np.int64)
    low = np.zeros(len(line_ends), np.int64)
    left = len(order) if len(order) else len(ends) - 1
    while left > 0:
        half = (left + 1) >> 1
        begin = 0
        for i in range(len(line_ends)):
            length, at, begin = line_ends[i] - begin, begin, line_ends[i] + 1
            if found[i] >= 0:
                continue
            middle = low[i] + half - 1
            number = u64(order[u64(middle)]) if len(order) else u64(middle)
            start = np.int64(ends[number])
            size = np.int64(ends[number + u64(1)]) - start
            sign = size - length
            for j in range(min(size, length)):
                difference = np.int64(text[u64(start + j)]) - np.int64(wanted[u64(at + j)])
                if difference:
                    sign = difference
                    break
            if sign == 0:
                found[i] = np.int64(number)
            elif sign < 0:
                low[i] = middle + 1
        left -= half
    return found
