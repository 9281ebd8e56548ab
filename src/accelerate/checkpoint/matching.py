"""Which saved object belongs to which object now: by shape and name, never by order alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.errors import CheckpointMismatchError

__all__ = ["Candidate", "match"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One object on one side.

    keys: what it is compared by, the strictest first; the first that tells one object on both sides decides.
    names: the variables that held it. token: set where both sides are the same live object.
    content: its saved state where that is small; candidates with equal contents may be exchanged.
    """

    index: int
    keys: tuple[Hashable, ...]
    names: tuple[str, ...] = ()
    token: str = ""
    label: str = ""
    content: Any = None


@dataclass(slots=True)
class _Side:
    left: list[Candidate] = field(default_factory=list)

    def take(self, candidate: Candidate) -> None:
        self.left.remove(candidate)


def match(what: str, saved: Sequence[Candidate], now: Sequence[Candidate], *, by_order: bool = False) -> dict[int, int]:
    """Index now → index saved, for those that belong together; the others are left out.

    ``what`` names the kind of object in messages. ``by_order`` lets the order of ``prepare`` decide what nothing else
    does.

    Raises:
        CheckpointMismatchError: several fit, and nothing tells which is which; both sides are listed.
    """
    found: dict[int, int] = {}
    old, new = _Side(list(saved)), _Side(list(now))

    def pair(a: Candidate, b: Candidate) -> None:
        found[b.index] = a.index
        old.take(a)
        new.take(b)

    _by_token(old, new, pair)
    levels = max((len(c.keys) for c in (*saved, *now)), default=0)
    for level in range(levels):
        for key in list(dict.fromkeys(c.keys[level] for c in new.left if len(c.keys) > level)):
            ours = [c for c in new.left if len(c.keys) > level and c.keys[level] == key]
            theirs = [c for c in old.left if len(c.keys) > level and c.keys[level] == key]
            _settle(what, theirs, ours, pair, by_order)
    return found


def _by_token(old: _Side, new: _Side, pair: Any) -> None:
    tokens = {c.token: c for c in old.left if c.token}
    for candidate in list(new.left):
        if candidate.token and candidate.token in tokens:
            pair(tokens[candidate.token], candidate)


def _settle(what: str, theirs: list[Candidate], ours: list[Candidate], pair: Any, by_order: bool) -> None:
    if not theirs or not ours:
        return
    for a, b in _by_name(theirs, ours):
        pair(a, b)
        theirs.remove(a)
        ours.remove(b)
    if not theirs or not ours:
        return
    alone = len(theirs) == len(ours) == 1
    same = all(_equal(c.content, theirs[0].content) for c in theirs[1:]) and theirs[0].content is not None
    if not (alone or by_order or (same and len(theirs) >= len(ours))):
        raise CheckpointMismatchError(
            f"Several {what}s fit one another, and nothing tells which is which; nothing was changed.\n"
            f"  in the checkpoint: {_listed(theirs)}\n"
            f"  prepared now: {_listed(ours)}\n"
            "Hold them in variables of the same names as when the checkpoint was saved, name them with "
            "accelerator.register_name(object, name) before saving and loading, or pass match='order' to load_state "
            "if you know that they were prepared in this order."
        )
    for a, b in zip(theirs, ours, strict=False):
        pair(a, b)


def _by_name(theirs: Sequence[Candidate], ours: Sequence[Candidate]) -> list[tuple[Candidate, Candidate]]:
    """Pairs that share a name nobody else of their side has, and contradict no other such name."""
    left, right = _owners(theirs), _owners(ours)
    votes: dict[int, set[int]] = {}
    back: dict[int, set[int]] = {}
    for name, b in right.items():
        if name in left:
            votes.setdefault(b.index, set()).add(left[name].index)
            back.setdefault(left[name].index, set()).add(b.index)
    old = {c.index: c for c in theirs}
    new = {c.index: c for c in ours}
    return [
        (old[next(iter(choice))], new[index])
        for index, choice in votes.items()
        if len(choice) == 1 and len(back[next(iter(choice))]) == 1
    ]


def _owners(candidates: Sequence[Candidate]) -> Mapping[str, Candidate]:
    owners: dict[str, Candidate | None] = {}
    for candidate in candidates:
        for name in candidate.names:
            owners[name] = None if name in owners else candidate
    return {name: candidate for name, candidate in owners.items() if candidate is not None}


def _equal(a: Any, b: Any) -> bool:
    import torch

    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _listed(candidates: Sequence[Candidate]) -> str:
    return "; ".join(
        f"{c.label or c.index}{' called ' + ' or '.join(c.names) if c.names else ' without a name'}" for c in candidates
    )
