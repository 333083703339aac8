#!/usr/bin/env python3
"""Stands in for qemu-system-x86_64 in tests: speaks its protocol and ends as `LAB_EMULATOR` selects."""

import json
import os
import socket
import sys
import time
from pathlib import Path

from nearmetal.hosts.lab import frames

# Of a cluster's machine; one that boots to its snapshot has none, and ends as only `LAB_EMULATOR` selects.
NODE = next((int(word[5:]) for word in ",".join(sys.argv).split(",") if word.startswith("node=")), None)
MODE = os.environ.get(f"LAB_EMULATOR_{NODE}", os.environ.get("LAB_EMULATOR", "serves" if NODE else "answers"))


def after(flag: str, number: int = 0) -> str:
    places = [index for index, word in enumerate(sys.argv) if word == flag]
    return sys.argv[places[number] + 1]


def main() -> None:
    if MODE == "refuses":
        sys.stderr.write("qemu: -device igb: 'igb' is not a valid device model name\n")
        sys.exit(1)
    console, answer = (Path(after("-serial", n).removeprefix("file:")) for n in (0, 1))
    console.write_text("[    0.1] booting\n")
    control = socket.socket(socket.AF_UNIX)
    control.connect(after("-qmp").removeprefix("unix:").partition(",")[0])
    stream = control.makefile("rw")
    say(stream, {"QMP": {"version": {}}})
    below = ""
    for line in stream:
        asked = json.loads(line)
        command = asked["execute"]
        if command == "migrate" and MODE != "no-space":
            frozen = {"frozen": "machine", "seed": after("-seed"), "below": below}
            Path(asked["arguments"]["uri"].removeprefix("file:")).write_text(json.dumps(frozen))
        if command == "migrate-incoming":
            below = Path(asked["arguments"]["uri"].removeprefix("file:")).parent.name
        migrated = "failed" if MODE == "no-space" else "completed"
        reply = {"status": migrated, "error-desc": "No space left on device"} if command == "query-migrate" else {}
        say(stream, {"return": reply})
        if command == "cont":
            run(stream, console, answer)


def run(stream: object, console: Path, answer: Path) -> None:
    if MODE == "dies":
        os.kill(os.getpid(), 9)
    while MODE == "spins":
        pass
    if MODE in {"hangs", "serves"}:
        time.sleep(3600)
    if MODE == "uncoupled":  # as native/wire ends a machine whose peer has disappeared
        sys.stderr.write(f"wire: node {NODE}: node 1 has ended\n")
        sys.exit(70)
    if MODE == "panics":
        trace = "[    1.0] Kernel panic - not syncing: test\n[    1.0]  ? do_exit+0x1/0x2\n[    1.0] RIP: 0033:0x1\n"
        console.write_text(trace)
        event(stream, "SHUTDOWN", guest=True, reason="guest-reset")
    elif MODE == "boots" or "-incoming" not in sys.argv or written_command() == frames.STAND_GUEST:
        remember("guest" if "-incoming" in sys.argv else "machine")
        event(stream, "GUEST_PANICKED", action="pause")
        return
    else:
        orders = written_command().splitlines()
        labels = [json.loads(order)["workload"]["label"] for order in orders]
        packed = [answer_of(label) for label in (labels[:1] if MODE == "dies-late" else labels)]
        answer.write_bytes(packed[0][: len(packed[0]) // 2] if MODE == "torn" else b"".join(packed))
        if MODE == "dies-late" and len(labels) > 1:
            os.kill(os.getpid(), 9)
        event(stream, "SHUTDOWN", guest=True, reason="guest-reset")
    sys.exit(0)


def written_command() -> bytes:
    return frames.unpack_order(Path(after("-fw_cfg").partition("file=")[2]).read_bytes())[0]


def remember(what: str) -> None:
    """Write to the file that is the machine's memory, if it has one."""
    words = next((word for word in sys.argv if "mem-path=" in word), "").split(",")
    if "share=on" in words:
        with Path(next(word[9:] for word in words if word.startswith("mem-path="))).open("a") as memory:
            memory.write(f"{what}\n")


def answer_of(label: str) -> bytes:
    status = "failed" if label == "fails" else "valid"
    outcome = outcome_of({"order_format": 1, "status": status, "said": label})
    return b"".join(frames.pack_files({"outcome.json": json.dumps(outcome).encode()}))


def outcome_of(partly: dict[str, object]) -> dict[str, object]:
    rest = {"reason": "", "hint": "", "launch_argv": [], "elapsed_ns": 1, "facts": {}, "counters": {}}
    return {**rest, "proof": {"moved_packets": {}, "stray_packets": {}}, **partly}


def event(stream: object, name: str, **data: object) -> None:
    say(stream, {"event": name, "data": data, "timestamp": {}})


def say(stream: object, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\r\n")  # type: ignore[attr-defined]
    stream.flush()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
