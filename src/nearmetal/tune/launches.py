"""The launches of a search, kept on disk, so that one that was interrupted goes on where it stopped.

A search is a pure function of its seed and of what its launches gave. So nothing but the launches is kept, in the order
in which they were asked for: a search that is continued asks for the same ones again, gets those of before from the
disk, and carries out the first that is not there. Figures always come from the records on disk, those of a fresh launch
too, hence a search ends alike whether or not it was interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearmetal.errors import BadInputError, ForeignFileError, NearmetalError, TrialError
from nearmetal.run.schedule import keep, utc_now
from nearmetal.run.trial import carry_out

if TYPE_CHECKING:
    from nearmetal.hosts.host import Host
    from nearmetal.stats.summary import Summary
    from nearmetal.store.rundir import SearchDir, TrialRecord
    from nearmetal.store.samples import StoredCell
    from nearmetal.study.order import Order, Outcome


@dataclass(frozen=True, slots=True)
class Launched:
    """What one launch gave."""

    order: Order
    outcome: Outcome
    cells: tuple[tuple[StoredCell, Summary], ...]


class NotLaunchedError(NearmetalError):
    """A search that is only looked at asks for a launch that was never carried out."""


class Launches:
    """Carries launches out, or recalls them; each gets the next number. Without a host they are recalled alone."""

    def __init__(self, host: Host | None, kept: SearchDir) -> None:
        self._host = host
        self._kept = kept
        self._known = {record.order.trial: record for record in kept.trials()}
        self._asked = 0

    @property
    def recalled(self) -> int:
        """Return how many launches were on disk when this was made."""
        return len(self._known)

    def launch(self, order: Order) -> Launched:
        """Return what an order gave, now or before the interruption.

        Raise what the host and the disk raise, and TrialError for samples that say nothing.
        """
        order = replace(order, trial=self._asked)
        self._asked += 1
        record = self._known.get(order.trial) or self._carry_out(order)
        if record.order.to_json() != order.to_json():
            raise ForeignFileError(
                f"launch {order.trial} of {self._kept.root} is not the one that this search asks for",
                hint="another version of nearmetal or of its libraries made it; start the search anew",
            )
        try:
            cells = [(cell, self._kept.summary(record, cell)) for cell in record.cells]
        except BadInputError as error:
            raise TrialError(f"{order.workload.label}: {error.message}", hint=error.hint) from error
        return Launched(order, record.outcome, tuple(cells))

    def _carry_out(self, order: Order) -> TrialRecord:
        if self._host is None:
            raise NotLaunchedError(f"launch {order.trial} of {self._kept.root} is not there")
        started_utc = utc_now()
        return keep(self._kept, order, self._host.carry_out(order, carry_out), 1, started_utc)
