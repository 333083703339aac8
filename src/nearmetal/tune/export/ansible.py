"""An Ansible play with builtin modules only: no collection has to be installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nearmetal.tune.export.common import Exported, banner, steps

if TYPE_CHECKING:
    from nearmetal.knobs.knob import Step
    from nearmetal.tune.profile import Profile

# Writes only when the value differs, and says so, so that the play is idempotent and honest about changes.
_SCRIPT = '[ "$(cat "$1")" = "$2" ] || { printf "%s\\\\n" "$2" > "$1" && echo changed; }'


def export(profile: Profile) -> Exported:
    """Return `nearmetal-NAME.yml`."""
    found, missed = steps(profile)
    tasks = "".join(_task(name, interface, step) for name, interface, step in found)
    head = "  hosts: all\n  gather_facts: false\n  become: true\n  tasks:\n"
    text = f"{banner(profile)}- name: nearmetal profile {profile.name}\n{head}{tasks}"
    where = f"anywhere; then `ansible-playbook nearmetal-{profile.name}.yml`"
    return Exported({f"nearmetal-{profile.name}.yml": text} if tasks else {}, where, missed)


def _task(name: str, interface: str, step: Step) -> str:
    title = " ".join(part for part in (name, interface, "to", step.value) if part)
    if step.access.path:
        argv = ["sh", "-c", _SCRIPT.replace("\\\\", "\\"), "set", step.access.path, step.value]
        changed = "result.stdout == 'changed'"
        ok = "result.rc != 0"
    else:
        argv = list(step.access.change_argv(step.value))
        changed = "result.rc == 0"
        # Older versions of ethtool end with status 80 when there was nothing to change.
        ok = "result.rc not in [0, 80]"
    # JSON strings are YAML strings.
    return (
        f"    - name: {json.dumps(title)}\n      ansible.builtin.command:\n        argv: {json.dumps(argv)}\n"
        f"      register: result\n      changed_when: {json.dumps(changed)}\n      failed_when: {json.dumps(ok)}\n"
    )
