"""A gate's finding as JUnit XML, one test case a cell.

There is no standard; this keeps to what the schema of Jenkins' xUnit plug-in (junit-10.xsd) allows, which GitLab,
GitHub actions and Bamboo read too. A cell that is worse is a failure, one that is undecided an error: both are red.
A figure that is not the headline is a separate test case, and red where it is worse.
"""

import re
from xml.etree import ElementTree as ET

from nearmetal.errors import visible
from nearmetal.gate import words
from nearmetal.results.gated import Gate, GateCell
from nearmetal.stats.between import Standing

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write (section 2.2, Char)."""


def render(gate: Gate) -> str:
    """Return the XML document."""
    cases = (*gate.judged, *(one for one in gate.others if not one.part))
    counts = {
        "tests": str(len(cases) + gate.cut_short),
        "failures": str(sum(one.standing is Standing.WORSE for one in cases)),
        "errors": str(gate.count(Standing.UNDECIDED) + gate.cut_short),
    }
    root = ET.Element("testsuites", {"name": "nearmetal gate", **counts})
    suite = ET.SubElement(
        root,
        "testsuite",
        {"name": _clean(gate.run.study_name), **counts, "skipped": "0", "timestamp": _clean(gate.run.created_utc[:19])},
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in [
        ("verdict", str(gate.verdict)),
        ("run", gate.run.root),
        ("base", gate.base.root),
        ("metric", str(gate.metric)),
        ("margin", str(gate.margin)),
        *(("changed", str(change)) for change in gate.changes),
    ]:
        ET.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    for one in cases:
        _case(suite, gate, one)
    if gate.cut_short:
        case = ET.SubElement(
            suite, "testcase", {"classname": _clean(gate.run.study_name), "name": "both runs are finished", "time": "0"}
        )
        finding = _clean(" ".join(words.unfinished(gate)))
        ET.SubElement(case, "error", {"type": "unfinished", "message": finding}).text = finding
    ET.SubElement(suite, "system-out").text = _clean(_summary(gate))
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, gate: Gate, one: GateCell) -> None:
    group = f"{gate.run.study_name}.{one.cell.workload}.{one.cell.setting}"
    case = ET.SubElement(suite, "testcase", {"classname": _clean(group), "name": _clean(gate.title(one)), "time": "0"})
    kind = {Standing.WORSE: "failure", Standing.UNDECIDED: "error" if one.metric is gate.metric else ""}.get(
        one.standing
    )
    finding = _clean(words.cell(one))
    if kind:
        ET.SubElement(case, kind, {"type": str(one.standing), "message": finding}).text = finding
    else:
        ET.SubElement(case, "system-out").text = finding


def _summary(gate: Gate) -> str:
    sentences = (
        words.verdict(gate),
        *words.unfinished(gate),
        *words.mixed(gate),
        *words.cautions(gate),
        words.others(gate),
        words.remeasured(gate),
        words.noise(gate),
    )
    return "\n".join(filter(None, sentences))


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
