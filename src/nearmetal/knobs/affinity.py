"""Which processors serve a NIC's interrupts: `/proc/irq/N/smp_affinity_list`.

irqbalance rewrites these files every ten seconds, and a driver may reset them when the interface goes up.
"""

import re
from dataclasses import dataclass

from nearmetal.hosts.host import Shell
from nearmetal.knobs.access import Access, file_access
from nearmetal.knobs.knob import CpuList, Knob, Stage, Step, Target, parse_cpus
from nearmetal.knobs.nic import vectors
from nearmetal.study.order import Scalar

_NAME = "nic.irq-affinity"
_SPREAD = "spread:"
_SEVERAL = re.compile(r"[-,]")


@dataclass(frozen=True, slots=True)
class _VectorPlacement:
    """A list of processors for every vector, or `spread:LIST` for one processor per vector in turn."""

    def canon(self, value: Scalar) -> str:
        text = str(value).strip()
        prefix = _SPREAD if text.startswith(_SPREAD) else ""
        return prefix + CpuList().canon(text.removeprefix(prefix))

    def about(self) -> str:
        return "a list of processors such as 0-3, or spread:0-3 for one processor per vector in turn"


class IrqAffinity(Knob):
    """The processors of every interrupt vector of one NIC."""

    __slots__ = ()

    def steps(self, shell: Shell, target: Target, value: str) -> tuple[Step, ...]:
        """Return one write a vector."""
        accesses = self.accesses(shell, target)
        if not value.startswith(_SPREAD):
            return tuple(Step(access, value) for access in accesses)
        cpus = parse_cpus(value.removeprefix(_SPREAD))
        return tuple(Step(access, str(cpus[i % len(cpus)])) for i, access in enumerate(accesses))


def _vectors(shell: Shell, target: Target) -> tuple[Access, ...]:
    """Return one access a vector; none for devices without interrupts of their own."""
    found = vectors(shell, target)
    return tuple(file_access(target.node, f"/proc/irq/{vector}/smp_affinity_list") for vector in found)


def lingers(knob: str, old: str) -> str:
    """Return why interrupts may be served elsewhere after the roll-back although their old list is read back, or "".

    The kernel moves none that is where it may be (irq_set_affinity in kernel/irq/manage.c).
    """
    if knob != _NAME or not _SEVERAL.search(old):
        return ""
    return (
        f"interrupts that any of the processors {old} may serve can stay, after the roll-back, where the setting put "
        "them; give each vector one processor first (smp_affinity_list), which is restored"
    )


KNOBS = (
    IrqAffinity(
        _NAME,
        "processors that serve the NIC's interrupts: near the rank, but not on its core, is usually best",
        "interface",
        Stage.AFFINITY,
        _VectorPlacement(),
        _vectors,
    ),
)
