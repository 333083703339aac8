"""Model files: what is refused in them, and that a file of an older version has no errors of the 99th percentile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearmetal.errors import BadInputError, ForeignFileError
from nearmetal.predict.calibration import JobCase
from nearmetal.predict.model_file import ModelFile, read_model, write_model
from nearmetal.predict.models import NamedMachine
from tests.unit.simulated import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

VF = NamedMachine("vf", "tuned", "polling", MACHINE)
MODEL = ModelFile("nearmetal-model", 3, "run", (VF, replace(VF, setting="default")), {"guest": (0.1, 0.1, 0.2)})


def test_a_model_reads_as_it_was_written(tmp_path: Path) -> None:
    job = (JobCase("guest", ("vf", "tuned", "polling"), 0.1), JobCase("guest", ("vf", "default", "polling"), 0.2))
    model = replace(MODEL, validated_p99={"relay": (-0.1, 0.3)}, baseline="native", jobs=(job,))
    write_model(model, tmp_path / "m.json")
    assert read_model(tmp_path / "m.json") == model
    assert (tmp_path / "m.json").read_text().startswith('{\n "format": "nearmetal-model",\n "version": 3,')
    assert model.of_p99 == {"relay": (-0.1, 0.3)}
    assert replace(model, version=2).of_p99 == model.of_p99
    assert replace(model, version=1).of_p99 == {}
    older = (tmp_path / "m.json").read_text().partition(',\n "jobs"')[0].replace('"version": 3', '"version": 2') + "}"
    (tmp_path / "m.json").write_text(older)
    assert read_model(tmp_path / "m.json") == replace(model, version=2, jobs=())


def test_machines_of_one_name_and_unsorted_errors_are_refused() -> None:
    with pytest.raises(BadInputError, match="it has vf / tuned / polling twice"):
        replace(MODEL, machines=(VF, replace(VF, mpi="mpich 4")))
    for errors in ({"validated": {"guest": (0.2, 0.1)}}, {"validated_p99": {"guest": (0.0, 0.2, 0.1)}}):
        with pytest.raises(BadInputError, match="the errors of the class 'guest' are not sorted"):
            replace(MODEL, **errors)


@pytest.mark.parametrize("error", ["Infinity", "-Infinity", "NaN", "1e999", "1000000.0"])
@pytest.mark.parametrize("of", ["validated", "jobs"])
def test_errors_beyond_all_durations_are_refused(tmp_path: Path, of: str, error: str) -> None:
    """An infinite one gave intervals up to `inf times` and exit code 0, a large one a traceback."""
    job = (JobCase("guest", VF.key, 0.125),)
    write_model(replace(MODEL, validated={"guest": (0.125,)}, jobs=(job,)), tmp_path / "m.json")
    edited = (tmp_path / "m.json").read_text()
    at = edited.index("0.125") if of == "validated" else edited.rindex("0.125")
    (tmp_path / "m.json").write_text(f"{edited[:at]}{error}{edited[at + 5 :]}")
    with pytest.raises(ForeignFileError, match=rf"not a model file of version 1 to 3: .*{of}"):
        read_model(tmp_path / "m.json")


def test_what_is_no_model_file_is_refused(tmp_path: Path) -> None:
    write_model(MODEL, tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    for wrong in (text[:-9], text.replace('"version": 3', '"version": 4'), text.replace("0.1", "0.3"), "[]"):
        (tmp_path / "wrong.json").write_text(wrong)
        with pytest.raises(ForeignFileError, match=r"wrong\.json is not a model file of version 1 to 3") as error:
            read_model(tmp_path / "wrong.json")
        assert "--save-model" in error.value.hint
    with pytest.raises(BadInputError, match=r"none\.json cannot be read: No such file or directory"):
        read_model(tmp_path / "none.json")
