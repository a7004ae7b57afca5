"""FLARE's own hooks of a cell, set before the cell takes a message.

FLARE (2.9) offers filters and an interceptor of messages, and makes and starts its cell in one go. The hooks are
therefore set as a cell starts. The byte ledger still sees what no hook sees: handshakes, heartbeats, returned messages.
"""

from collections.abc import Callable

from nvflare.fuel.f3.cellnet.core_cell import CoreCell

from medfedvqa.federation.flare import patches


def before_start(prepare: Callable[[CoreCell], None]) -> None:
    """From now on each cell of this process is given to `prepare`, and starts only if that raises nothing."""
    start = patches.START.current()

    def prepared_start(cell: CoreCell) -> None:
        prepare(cell)
        start(cell)

    patches.START.replace(prepared_start)
