"""From the raw files of an outcome to samples; needs numpy, so it never runs inside the lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from nearmetal.errors import ForeignFileError
from nearmetal.hosts import fake
from nearmetal.reading import parse_json
from nearmetal.store.samples import CellSamples
from nearmetal.study.order import Outcome
from nearmetal.workloads.apps import COMMUNICATION, ITERATIONS
from nearmetal.workloads.engine import SAMPLES
from nearmetal.workloads.fabric import SAMPLES as FABRIC
from nearmetal.workloads.fabric_file import read_fabric_file
from nearmetal.workloads.figures import VOLUME_BYTES
from nearmetal.workloads.rounds import ALL
from nearmetal.workloads.sample_file import read_sample_file, to_cell_samples
from nearmetal.workloads.tool_samples import decode_tools, one_cell
from nearmetal.workloads.tools.tool import Spans


def _engine(data: bytes) -> list[CellSamples]:
    return list(to_cell_samples(read_sample_file(data)))


def _application(data: bytes) -> list[CellSamples]:
    """Return the iterations, and before them the whole timed part as one sample, under the name with `.total`."""
    cells = _engine(data)
    return [_total(cell) for cell in cells] + cells


def _total(cell: CellSamples) -> CellSamples:
    ns = cell.begin_ns[:, -1:] + cell.ns[:, -1:] - cell.begin_ns[:, :1]
    name = f"{cell.operation}.total"
    return replace(cell, operation=name, begin_ns=cell.begin_ns[:, :1], ns=ns, flags=cell.flags[:, :1])


def _fabric(data: bytes) -> list[CellSamples]:
    """Return one figure a pair of a whole fabric: its median round trip, and its two directions' time of 1 GiB."""
    file = read_fabric_file(data)
    header, rows = file.header, file.phase_of_rows() == ALL
    round_trips = np.median(file.latency_ns[rows, header.latency_warmup :], axis=1)
    cells = [one_cell("fabric.latency", header.latency_bytes, Spans(round_trips.astype(np.int64).tolist()))]
    if header.bandwidth_iterations:
        windows = np.concatenate((file.there_ns[rows], file.back_ns[rows]))[:, header.bandwidth_warmup :]
        volumes = VOLUME_BYTES / (header.bandwidth_bytes * header.bandwidth_window)
        spans = np.median(windows, axis=1) * volumes
        cells.append(one_cell("fabric.bandwidth", header.bandwidth_bytes, Spans(spans.astype(np.int64).tolist())))
    return cells


def _fake(data: bytes) -> list[CellSamples]:
    cells = []
    for cell in parse_json(data)["cells"]:
        ns = np.array(cell["ns"], np.int64)
        begin_ns = np.cumsum(ns, axis=1) - ns
        flags = np.zeros(ns.shape, np.uint8)
        cells.append(CellSamples(cell["operation"], cell["message_bytes"], cell["warmup"], (0,), begin_ns, ns, flags))
    return cells


_DECODERS: dict[str, Callable[[bytes], list[CellSamples]]] = {
    SAMPLES: _engine,
    ITERATIONS: _application,
    COMMUNICATION: _engine,
    FABRIC: _fabric,
    fake.FILE: _fake,
}


def decode(outcome: Outcome) -> list[CellSamples]:
    """Return the samples in a valid outcome's files; raise ForeignFileError when there are none to read."""
    cells = [
        cell for name, decoder in _DECODERS.items() if name in outcome.files for cell in decoder(outcome.files[name])
    ]
    cells += decode_tools(outcome.files)
    if not cells:
        raise ForeignFileError(f"the trial left no samples, only {sorted(outcome.files) or 'nothing'}")
    return cells
