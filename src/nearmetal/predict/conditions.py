"""What the times of a trial depend on besides its path, setting and progress mode, in words."""

from collections.abc import Mapping

from nearmetal.store.rundir import RunDir, TrialRecord
from nearmetal.study.facts import PROCESSORS
from nearmetal.study.order import Scalar
from nearmetal.units import counted

_WIRE = "lab.wire_"


def mpi_of(record: TrialRecord) -> str:
    """Return flavour and version of the MPI of a trial."""
    return f"{record.order.mpi} {record.outcome.facts.get('mpi.version', '')}".strip()


def conditions_of(run: RunDir, record: TrialRecord) -> dict[str, str]:
    """Return what a trial's times depend on besides path, setting and progress: words by how a sentence begins them."""
    order, facts = record.order, record.outcome.facts
    processors = facts.get(PROCESSORS)
    wire = {name.removeprefix(_WIRE): value for name, value in facts.items() if name.startswith(_WIRE)}
    told = {
        "on the host": run.info.host_kind,
        "with": mpi_of(record),
        "under the setting": _in_words(order.knobs),
        "over": ", ".join(filter(None, (order.path.kind, _in_words(order.path.options)))),
        "on the wire": _in_words(wire),
        "in QEMU": str(facts.get("lab.emulator", "")),
        "on a processor": _processor(run, str(facts.get("cpu.model", ""))),
        "with kernel": str(facts.get("kernel.release", "")),
        "on nodes with": counted(processors, "processor") if isinstance(processors, int) else "",
    }
    return {how: words for how, words in told.items() if words or how == "under the setting"}


def _processor(run: RunDir, model: str) -> str:
    """Return the model of a processor; the lab's may have the name of a real one.

    All of the lab's take a nanosecond for an instruction, but not the same instructions: the kernel copies with those
    that the model has.
    """
    return f"an emulated {model or 'processor'}" if run.info.host_kind == "lab" else model


def _in_words(values: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(values.items()))
