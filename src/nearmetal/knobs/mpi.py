"""Knobs of MPI libraries and UCX: environment and arguments of one launch, so there is nothing to roll back.

Names and defaults: Open MPI 4.1 and 5 (`ompi_info --all`), MPICH 4/5 (`src/util/cvar`), MVAPICH2 2.3 user guide
chapter 11, UCX (`ucx_info -cf`). A library that has no such setting refuses the knob and says what it offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nearmetal.errors import BadInputError
from nearmetal.knobs.knob import Kind, OneOf, WholeNumber, canon
from nearmetal.study.order import Scalar

PREFIX = "mpi."

FLAVOURS = ("openmpi4", "openmpi5", "mpich", "mvapich2", "ucx")
"""`openmpi` and `ucx` alone mean Open MPI 5 and any library over UCX."""

_ALIASES = {"openmpi": "openmpi5"}


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a launch gets: variables of the environment, and arguments of the launcher."""

    env: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()

    def plus(self, other: Contribution) -> Contribution:
        """Return both; raise BadInputError when they disagree about a variable."""
        for name in self.env.keys() & other.env.keys():
            if self.env[name] != other.env[name]:
                raise BadInputError(
                    f"two knobs set {name}: to {self.env[name]!r} and to {other.env[name]!r}",
                    hint="keep one of the knobs",
                )
        return Contribution({**self.env, **other.env}, self.argv + other.argv)


Render = Callable[[str], Contribution]


@dataclass(frozen=True, slots=True)
class MpiKnob:
    """A knob of one launch: `renders[flavour]` turns a value into what that library understands."""

    name: str
    about: str
    kind: Kind
    renders: Mapping[str, Render]


def _env(*names: str) -> Render:
    def render(value: str) -> Contribution:
        return Contribution(dict.fromkeys(names, value))

    return render


def _eager(*names: str, beyond: int = 0, ucx: bool = False) -> Render:
    """Return what makes messages of a size eager: variables of the library, to which `beyond` is added, and UCX's."""

    def render(value: str) -> Contribution:
        largest = int(value)
        return Contribution(
            {**dict.fromkeys(names, str(largest + beyond)), **({_UCX_RNDV: str(largest + 1)} if ucx else {})}
        )

    return render


def _choice(table: Mapping[str, Mapping[str, str]], flavour: str) -> Render:
    def render(value: str) -> Contribution:
        if value not in table:
            raise BadInputError(
                f"mpi.progress = {value!r} does not exist in {flavour}", hint=f"{flavour} has {', '.join(table)}"
            )
        return Contribution(dict(table[value]))

    return render


def _option(name: str, without: str = "") -> Render:
    def render(value: str) -> Contribution:
        if value == without:
            raise BadInputError(f"mpich has no mpi.map = {value!r}", hint="it maps within a node: core, socket or numa")
        return Contribution(argv=(name, value))

    return render


_OMPI_YIELD = "OMPI_MCA_mpi_yield_when_idle"
_PROGRESS = {
    "openmpi4": {"polling": {_OMPI_YIELD: "0"}, "yielding": {_OMPI_YIELD: "1"}},
    "openmpi5": {
        "polling": {_OMPI_YIELD: "0"},
        "yielding": {_OMPI_YIELD: "1"},
        # The one mode of Open MPI 5 that gives the processor up for a while: sleeps between looks.
        "blocking": {_OMPI_YIELD: "1", "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep"},
    },
    "mpich": {
        "polling": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "0"},
        "yielding": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"},
        "blocking": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
    },
    "mvapich2": {
        "polling": {"MV2_USE_BLOCKING": "0"},
        # Blocking also turns the RDMA fast path and the shared-memory path off (user guide, MV2_USE_BLOCKING).
        "blocking": {"MV2_USE_BLOCKING": "1"},
    },
    "ucx": {"polling": {"UCX_ADAPTIVE_PROGRESS": "n"}, "yielding": {"UCX_ADAPTIVE_PROGRESS": "y"}},
}
_OPENIB_QUEUES = "OMPI_MCA_btl_openib_receive_queues"
_OPENIB_SRQ_BYTES = 65536
_UCX_SRQ = ("UCX_RC_VERBS_RX_QUEUE_LEN", "UCX_RC_MLX5_RX_QUEUE_LEN")
_UCX_INLINE = ("UCX_RC_VERBS_TX_MIN_INLINE", "UCX_RC_MLX5_TX_MIN_INLINE")
_TCP_EAGER = "OMPI_MCA_btl_tcp_eager_limit"
_UCX_RNDV = "UCX_RNDV_THRESH"
"""The size from which on UCX makes a rendezvous."""
_OB1_HEADER_BYTES = 80
"""Open MPI counts the header of a message: sizeof(mca_pml_ob1_hdr_t), the least limit that it takes."""
_BYTES = WholeNumber(0, 2**30, "bytes")
_ENTRIES = WholeNumber(1, 65536, "entries")


def _openib_queue(entries: str, watermark: int | None = None) -> Contribution:
    """Return one shared queue of Open MPI 4: `S,bytes,num,low`, low being where it posts more (btl/openib, README)."""
    num = int(entries)
    low = max(1, num * 3 // 4) if watermark is None else watermark
    return Contribution({_OPENIB_QUEUES: f"S,{_OPENIB_SRQ_BYTES},{num},{low}"})


def _openib_watermark(low: str) -> Contribution:
    # Open MPI keeps the low watermark in the queue's own description; 256 entries are its default.
    return _openib_queue(str(max(256, int(low) + 1)), int(low))


KNOBS: tuple[MpiKnob, ...] = (
    MpiKnob(
        "mpi.progress",
        "how a rank waits: polling is fastest; yielding and blocking leave the processor to others",
        OneOf(("polling", "yielding", "blocking")),
        {flavour: _choice(table, flavour) for flavour, table in _PROGRESS.items()},
    ),
    MpiKnob(
        "mpi.yield-sleep-ns",
        "how long Open MPI 5 sleeps between polls when it blocks",
        WholeNumber(1, 10**9, "ns"),
        {"openmpi5": _env("OMPI_MCA_threads_pthreads_nanosleep_time")},
    ),
    MpiKnob(
        "mpi.srq-size",
        "receive buffers that all peers share",
        _ENTRIES,
        {
            "openmpi4": _openib_queue,
            # Open MPI 5 reaches InfiniBand through UCX alone.
            "openmpi5": _env(*_UCX_SRQ),
            "mvapich2": _env("MV2_SRQ_SIZE"),
            "ucx": _env(*_UCX_SRQ),
        },
    ),
    MpiKnob(
        "mpi.srq-limit",
        "free shared buffers at which more are posted (low watermark); at most the size",
        _ENTRIES,
        {"openmpi4": _openib_watermark, "mvapich2": _env("MV2_SRQ_LIMIT")},
    ),
    MpiKnob(
        "mpi.inline-bytes",
        "messages up to this size travel inside the work request",
        WholeNumber(0, 4096, "bytes"),
        {
            "openmpi4": _env("OMPI_MCA_btl_openib_max_inline_data"),
            "openmpi5": _env(*_UCX_INLINE),
            "mvapich2": _env("MV2_MAX_INLINE_SIZE"),
            "ucx": _env(*_UCX_INLINE),
        },
    ),
    MpiKnob(
        "mpi.eager-bytes",
        "messages between nodes up to this size are sent without a rendezvous with the receiver",
        _BYTES,
        {
            "openmpi4": _eager(_TCP_EAGER, "OMPI_MCA_btl_openib_eager_limit", beyond=_OB1_HEADER_BYTES),
            "openmpi5": _eager(_TCP_EAGER, beyond=_OB1_HEADER_BYTES),
            # Which of them MPICH goes over is a matter of its build; that of PyPI goes over UCX.
            "mpich": _eager("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD", "MPIR_CVAR_CH3_EAGER_MAX_MSG_SIZE", ucx=True),
            "mvapich2": _env("MV2_IBA_EAGER_THRESHOLD"),
            "ucx": _eager(ucx=True),
        },
    ),
    MpiKnob(
        "mpi.transport",
        "the transport of messages, as the library names it, such as `tcp,self` or `rc,sm`",
        OneOf(),
        {
            "openmpi4": _env("OMPI_MCA_btl"),
            "openmpi5": _env("OMPI_MCA_btl"),
            "mpich": _env("MPIR_CVAR_CH4_NETMOD"),
            "ucx": _env("UCX_TLS"),
        },
    ),
    MpiKnob(
        "mpi.bind",
        "what a rank is bound to",
        OneOf(("none", "core", "socket", "numa")),
        {
            "openmpi4": _option("--bind-to"),
            "openmpi5": _option("--bind-to"),
            "mpich": _option("-bind-to"),
            "mvapich2": lambda value: Contribution(
                {"MV2_ENABLE_AFFINITY": "0"}
                if value == "none"
                else {"MV2_ENABLE_AFFINITY": "1", "MV2_CPU_BINDING_LEVEL": "numanode" if value == "numa" else value}
            ),
        },
    ),
    MpiKnob(
        "mpi.map",
        "what successive ranks are spread over",
        OneOf(("core", "socket", "numa", "node")),
        {"openmpi4": _option("--map-by"), "openmpi5": _option("--map-by"), "mpich": _option("-map-by", "node")},
    ),
)

_BY_NAME = {knob.name: knob for knob in KNOBS}


def find(name: str) -> MpiKnob:
    """Return the knob of that name; raise BadInputError when there is none."""
    if name not in _BY_NAME:
        raise BadInputError(f"there is no knob {name!r}", hint=f"MPI knobs are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def dialect(flavour: str, version: str) -> str:
    """Return the flavour whose words a library understands: Open MPI 4 and 5 differ."""
    if flavour in {"openmpi", "openmpi5"}:
        return "openmpi4" if version.startswith("4.") else "openmpi5"
    return flavour


def mpi_environment(knobs: Mapping[str, Scalar], flavour: str) -> Contribution:
    """Return what the `mpi.` knobs of a setting add to a launch by `flavour`; other knobs are not looked at.

    `flavour` is one of FLAVOURS, or `openmpi`. Raises BadInputError for an unknown knob, an illegal value, and a
    knob that the library does not have.
    """
    library = _ALIASES.get(flavour, flavour)
    given = {name: _render(find(name), value, library) for name, value in knobs.items() if name.startswith(PREFIX)}
    limit, size = (knobs.get(f"mpi.srq-{part}") for part in ("limit", "size"))
    if limit is not None and size is not None:
        if int(limit) > int(size):
            raise BadInputError(f"mpi.srq-limit {limit} is above mpi.srq-size {size}", hint="lower the limit")
        if library == "openmpi4":  # one variable says both
            if int(limit) == int(size):
                raise BadInputError(f"openmpi4 takes an mpi.srq-limit below the size, {size}", hint="lower the limit")
            given |= {"mpi.srq-size": _openib_queue(str(size), int(limit)), "mpi.srq-limit": Contribution()}
    if library == "mpich" and "mpi.map" in given and knobs.get("mpi.bind", "none") == "none":
        raise BadInputError("mpich ignores mpi.map where it binds no rank", hint="set mpi.bind as well")
    whole = Contribution()
    for one in given.values():
        whole = whole.plus(one)
    return whole


def _render(knob: MpiKnob, value: Scalar, library: str) -> Contribution:
    text = canon(knob, value)
    if library not in knob.renders:
        raise BadInputError(f"{library} has no {knob.name}", hint=f"{', '.join(knob.renders)} have it")
    return knob.renders[library](text)
