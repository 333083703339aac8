"""Shell scripts: one that sets everything, and a prolog and an epilog for Slurm that set it for the length of a job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from nearmetal.knobs.undo import VALUE_OF_FUNCTION
from nearmetal.tune.export.common import Exported, banner, steps

if TYPE_CHECKING:
    from nearmetal.knobs.knob import Step
    from nearmetal.tune.profile import Profile


def ethtool_script(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.sh`: sets everything, stops at the first refusal."""
    found, missed = steps(profile)
    lines = "".join(f"{_set(step, shlex.quote(step.value))}\n" for _, _, step in found)
    text = f"#!/bin/sh\n{banner(profile)}set -e\n{lines}"
    return Exported({f"nearmetal-{profile.name}.sh": text} if found else {}, "anywhere; run it as root", missed)


def slurm(profile: Profile) -> Exported:
    """Return a prolog that saves the present values and sets the profile, and an epilog that puts them back.

    The values of a job are kept in /run/nearmetal, one file a value, written before the first change; a node that
    crashes loses both the files and the settings. Both scripts end with status 0: Slurm drains a node whose prolog
    fails.
    """
    found, missed = steps(profile)
    numbered = list(enumerate(found))
    save = "".join(f'{_value_of(step)} > "$kept.new/{i}"\n' for i, (_, _, step) in numbered)
    change = "".join(
        f"{_set(step, shlex.quote(step.value))} || say 'could not set {name}'\n" for _, (name, _, step) in numbered
    )
    # Backward, then forward: modes reset values, and some modes forbid writing values. The second pass judges.
    back = "".join(f"{_from_file(i, step)}\n" for i, (_, _, step) in reversed(numbered))
    forward = "".join(
        f'[ "$({_value_of(step)})" = "$(cat "$kept/{i}")" ] || {_from_file(i, step)} || failed="$failed {name}"\n'
        for i, (name, _, step) in numbered
    )
    head = f"#!/bin/sh\n{banner(profile)}{_SLURM_HEAD}"
    prolog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] && exit 0\nmkdir -p "$kept.new" || exit 0\n'
    prolog += save + f'sync\nmv "$kept.new" "$kept" || exit 0\n{change}exit 0\n'
    epilog = f'{head}{VALUE_OF_FUNCTION}[ -d "$kept" ] || exit 0\nfailed=\n{back}{forward}'
    epilog += 'if [ "$failed" ]; then say "could not put back:$failed"; else rm -r "$kept"; fi\nexit 0\n'
    files = {f"prolog-nearmetal-{profile.name}.sh": prolog, f"epilog-nearmetal-{profile.name}.sh": epilog}
    where = "the directories that Prolog= and Epilog= of slurm.conf name; nodes must be exclusive to one job"
    return Exported(files if found else {}, where, missed)


_OLD = '"$old"'
_SLURM_HEAD = """kept=/run/nearmetal/${SLURM_JOB_ID:?}
say() { logger -t nearmetal -- "$1" 2>/dev/null || echo "print $1"; }
"""


def _value_of(step: Step) -> str:
    return f"value_of {shlex.quote(step.access.pick.sed())} {shlex.join(step.access.show)}"


def _from_file(number: int, step: Step) -> str:
    return f'{{ old=$(cat "$kept/{number}"); [ -z "$old" ] || {_set(step, _OLD)}; }}'


def _set(step: Step, value: str) -> str:
    if step.access.path:
        return f"printf '%s\\n' {value} > {shlex.quote(step.access.path)}"
    return " ".join(value if word == "{}" else shlex.quote(word) for word in step.access.change)
