"""Writes a checkpoint of everything an accelerator holds."""

from __future__ import annotations

import base64
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import runtime
from accelerate.checkpoint import layout, rng_files
from accelerate.checkpoint.asynchronous import Save, finished, in_background, raise_outcome, with_main
from accelerate.checkpoint.collect import Contribution, contribute, describe, everything_else, plain_pieces
from accelerate.checkpoint.divided import Receipt
from accelerate.checkpoint.job import SAVING
from accelerate.checkpoint.local_store import LocalStore
from accelerate.checkpoint.meeting import Late, Meeting
from accelerate.checkpoint.parts import Piece, Subject
from accelerate.checkpoint.request import SaveRequest
from accelerate.checkpoint.staging import Staging
from accelerate.checkpoint.store import CheckpointStore, Transaction
from accelerate.checkpoint.writing import write_pieces
from accelerate.comm.watch import watched
from accelerate.errors import CheckpointError
from accelerate.logging import get_logger

__all__ = ["Saver"]

log = get_logger(__name__)

# Seconds for which the main process waits for the others: where it can go on without them, and where it cannot.
GRACE_REPLICATED = 3.0
GRACE_TOGETHER = 10.0


@dataclass(slots=True, kw_only=True)
class _Round:
    """One save as the rank that writes it sees it."""

    meeting: Meeting | None
    session: str = ""
    parts: dict[int, bytes]
    missing: tuple[int, ...] = ()
    target: Path
    number: int | None
    transaction: Transaction
    leads: bool = True

    def receipts(self) -> dict[int, bytes]:
        """What the other ranks told when they had written their parts."""
        if self.meeting is None:
            return {}
        return self.meeting.collect(self.session, "receipt", range(1, self.meeting.size))

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.transaction.abort()
        if self.meeting is not None and self.leads:
            _tell_end(self.meeting, self.session, error)


class Saver:
    """Saves checkpoints for one accelerator, at most one of them in the background.

    ``meeting`` is how the ranks of a job find each other; None where there is one process.
    """

    def __init__(self, store: CheckpointStore | None = None, meeting: Meeting | None = None) -> None:
        self.store: CheckpointStore = store or LocalStore()
        self.grace: float | None = None
        self._staging = Staging()
        self._pending: Save | None = None
        self._meeting = meeting

    def settle(self) -> None:
        """Waits for the save in the background, if there is one.

        Raises:
            CheckpointError: it failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def release(self) -> None:
        """Waits as :meth:`settle` does, and gives the memory of the copies back."""
        self.settle()
        self._staging.release()

    def save(self, subject: Subject, request: SaveRequest) -> tuple[Save, int | None]:
        """Writes a checkpoint; the save, and the number that automatic naming gave it.

        Every rank should call it. Where the state is replicated the main process may call it alone: then the random
        states of the others are not saved, which is logged and recorded.

        Raises:
            CheckpointError: it could not be written, or ranks that hold parts of the state did not come.
        """
        self.settle()
        meeting = self._meet(subject)
        with watched(SAVING):
            if runtime.current().topology.rank == 0:
                save, number = self._lead(subject, request, meeting)
            else:
                save, number = self._follow(subject, request, meeting)
        if request.asynchronous:
            self._pending = save
        return save, number

    def _meet(self, subject: Subject) -> Meeting | None:
        topology = runtime.current().topology
        if topology.world_size == 1:
            return None
        if self._meeting is None:
            raise CheckpointError(
                f"Rank {topology.rank} of {topology.world_size} has no process group to find the others with. Save "
                "before the group is destroyed."
            )
        self._meeting.at(_clock(subject))
        return self._meeting

    # The main process

    def _lead(self, subject: Subject, request: SaveRequest, meeting: Meeting | None) -> tuple[Save, int | None]:
        together = subject.adapter.sharded or subject.adapter.engine
        parts, session = {0: rng_files.capture(subject.step)}, ""
        missing: tuple[int, ...] = ()
        if meeting is not None:
            came = meeting.count(self.grace or (GRACE_TOGETHER if together else GRACE_REPLICATED))
            session, missing = came.session, came.missing
            parts.update(came.parts)
        try:
            if together and missing:
                raise CheckpointError(_nobody_came(missing, runtime.current().topology.world_size))
            target, number = self._choose(request)
            transaction = self.store.begin(target)
        except BaseException as error:
            if meeting is not None:
                _tell_end(meeting, session, error)
            raise
        now = _Round(
            meeting=meeting, session=session, parts=parts, missing=missing, target=target, number=number,
            transaction=transaction,
        )  # fmt: skip
        if meeting is not None:
            meeting.tell(_decision(now, request))
        return self._write(subject, request, now, complete=not missing), number

    def _choose(self, request: SaveRequest) -> tuple[Path, int | None]:
        if request.target is not None:
            return request.target, None
        if request.root is None:
            raise CheckpointError("A save needs a folder to write to, or a root for automatic naming.")
        taken = [entry.number + 1 for entry in self.store.entries(request.root)]
        number = max([request.number, *taken])
        return request.root / layout.checkpoint_name(number), number

    def _write(self, subject: Subject, request: SaveRequest, now: _Round, *, complete: bool) -> Save:
        """This rank's contribution, and the checkpoint itself: now, or in the background."""
        try:
            contribution = contribute(
                subject, request, now.transaction.folder, complete=complete, durable=self.store.durable
            )
            pieces, content = self._gather(subject, request, now, contribution)
            if request.asynchronous:
                pieces = self._staging.take(pieces)
        except BaseException as error:
            now.end(error)
            raise

        root = None if request.root is None else Path(os.path.abspath(request.root))

        def work() -> None:
            try:
                receipts = _write_parts(contribution, now.transaction, 0)
                write_pieces(now.transaction, pieces)
                if contribution.parts is not None:
                    receipts.update(now.receipts())
                    contribution.parts.finish(now.transaction, receipts)
                now.transaction.commit(content)
                if root is not None and request.limit is not None:
                    self.store.prune(root, request.limit)
            except BaseException as error:
                now.end(error)
                raise
            now.end()

        if request.asynchronous:
            return in_background(str(now.target), work)
        try:
            work()
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {now.target} could not be written: {error}. Those that were complete before are still "
                "there."
            ) from error
        return finished(str(now.target))

    def _gather(
        self, subject: Subject, request: SaveRequest, now: _Round, contribution: Contribution
    ) -> tuple[list[Piece], dict[str, Any]]:
        pieces, records = plain_pieces(subject, request, contribution, now.transaction.id)
        more_pieces, more_records = everything_else(subject, contribution, now.parts)
        if now.missing:
            log.warning(_absent(now.missing))
        content = describe(
            subject,
            [*records, *more_records],
            number=now.number,
            missing=now.missing,
            hooked=contribution.hooked,
        )
        return [*pieces, *more_pieces], content

    # The others

    def _follow(self, subject: Subject, request: SaveRequest, meeting: Meeting | None) -> tuple[Save, int | None]:
        assert meeting is not None
        came = meeting.come(rng_files.capture(subject.step))
        if isinstance(came, Late):
            log.warning(
                f"Rank {meeting.rank} came to save_state after the main process had gone on without it: its random "
                "states are not in that checkpoint. Call save_state on every rank at the same point of the program.",
                main_process_only=False,
            )
            return finished(str(request.target or "")), None
        decision = meeting.decision(came)
        target = Path(raise_outcome(decision, decision.get("target") or str(request.target)))
        topology = runtime.current().topology
        if request.each_node and topology.is_local_main:
            own = request.target or (request.root and request.root / target.name) or target
            self._write_here(subject, request, own, decision)
            target = own
        else:
            self._take_part(subject, request, decision, meeting, came)
        save = with_main(str(target), meeting, came)
        if not request.asynchronous:
            save.wait()
        return save, decision["number"]

    def _take_part(
        self, subject: Subject, request: SaveRequest, decision: dict[str, Any], meeting: Meeting, session: str
    ) -> None:
        """This rank's contribution, and its own parts of divided state: now, or in the background."""
        folder = Path(decision["folder"])
        contribution = contribute(subject, request, folder, complete=decision["complete"], durable=self.store.durable)
        if contribution.parts is None:
            return

        def work() -> None:
            try:
                transaction = self.store.join(folder, decision["id"])
                told = _write_parts(contribution, transaction, meeting.rank)[meeting.rank]
            except BaseException as error:
                meeting.leave(session, "receipt", Receipt.failure(error))
                raise
            meeting.leave(session, "receipt", told)

        if request.asynchronous:
            in_background(decision["target"], work)
        else:
            work()

    def _write_here(self, subject: Subject, request: SaveRequest, target: Path, decision: dict[str, Any]) -> None:
        """Writes this machine's own copy, for file systems that machines do not share."""
        now = _Round(
            meeting=None,
            parts={int(rank): base64.b64decode(part) for rank, part in decision["parts"].items()},
            missing=tuple(decision["missing"]),
            target=target,
            number=decision["number"],
            transaction=self.store.begin(target),
            leads=False,
        )
        self._write(subject, request, now, complete=decision["complete"])


def _write_parts(contribution: Contribution, transaction: Transaction, rank: int) -> dict[int, bytes]:
    return {} if contribution.parts is None else {rank: contribution.parts.write(transaction, rank)}


def _clock(subject: Subject) -> str:
    """Where in the program this rank is: equal on ranks that step together."""
    moved = [getattr(getattr(s, "scheduler", s), "last_epoch", 0) for s in subject.schedulers]
    return f"{subject.step}/{moved}"


def _decision(now: _Round, request: SaveRequest) -> dict[str, Any]:
    decision: dict[str, Any] = {
        "folder": str(now.transaction.folder),
        "id": now.transaction.id,
        "target": str(now.target),
        "number": now.number,
        "complete": not now.missing,
        "missing": list(now.missing),
    }
    if request.each_node:
        decision["parts"] = {rank: base64.b64encode(part).decode() for rank, part in now.parts.items()}
    return decision


def _tell_end(meeting: Meeting, session: str, error: BaseException | None) -> None:
    try:
        meeting.end(session, {} if error is None else {"error": f"{type(error).__name__}: {error}"})
    except Exception:  # the group's store may be gone by the time a background save ends
        log.debug("Could not tell the other ranks how the save ended:\n%s", traceback.format_exc())


def _nobody_came(missing: tuple[int, ...], size: int) -> str:
    return (
        f"save_state was called without rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of "
        f"{size}, but every rank holds a part of the state. Call it on every rank, not inside "
        "`if accelerator.is_main_process`."
    )


def _absent(missing: tuple[int, ...]) -> str:
    return (
        f"save_state was called without rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}: their "
        "random states are not in the checkpoint, so a run resumed from it does not go on bit for bit. Call save_state "
        "on every rank."
    )
