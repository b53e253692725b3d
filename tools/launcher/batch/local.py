"""A job in this very process, one piece after another."""

from __future__ import annotations

from collections.abc import Iterable

from .job import Piece
from .ledger import Ledger
from .store import Store
from .worker import PieceError, Worker

TRIES = 3


def run(worker: Worker, todo: Iterable[Piece], store: Store, ledger: Ledger) -> None:
    """Run every piece that the store lacks; one that fails three times is named and left out."""
    for piece in todo:
        if store.read(piece.key) is not None:
            ledger.reused()
            continue
        for attempt in range(1, TRIES + 1):
            try:
                worker.run(piece.key, piece.values)
            except PieceError as error:
                if attempt == TRIES:
                    ledger.skipped(piece, str(error))
            else:
                ledger.finished()
                break
