"""How `apply --accept` in one terminal reaches the `apply` that waits in another.

The one that waits holds a lock on `NAME.DIGEST.waiting`; no lock, nobody there. The other makes `NAME.DIGEST.accepted`,
waits until the lock is gone, and reads whether it was in time. The digest is of the profile: several may have one name.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from nearmetal.errors import StoreError, TrialError, os_errors_as
from nearmetal.process import wait_until

_KEPT = b"kept\n"
_LOOK_S = 0.05
_PATIENCE_S = 60.0
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Waiting:
    """An apply that waits."""

    descriptor: int
    token: Path

    def accepted(self) -> bool:
        """Return whether somebody accepted."""
        return self.token.exists()

    def answer(self) -> None:
        """Record that the setting is kept; the user must not be told so where that cannot be written."""
        with contextlib.suppress(OSError):
            os.write(self.descriptor, _KEPT)


class ConfirmationPoint:
    """Where the `apply` of one profile, given by its name and text, and its `--accept` find each other."""

    def __init__(self, folder: Path, profile: str, text: str) -> None:
        self.profile = profile
        named = f"{profile}.{sha256(text.encode()).hexdigest()[:16]}"
        self._place = folder / f"{named}.waiting"
        self._token = folder / f"{named}.accepted"

    @contextlib.contextmanager
    def open(self) -> Iterator[Waiting]:
        """Wait to be accepted; raise StoreError where that is impossible."""
        with os_errors_as(StoreError, f"cannot wait for confirmation, {self._place}"):
            self._token.unlink(missing_ok=True)
            descriptor = os.open(self._place, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise TrialError(f"another apply of {self.profile} is waiting for confirmation") from error
        try:
            yield Waiting(descriptor, self._token)
        finally:
            with contextlib.suppress(OSError):
                self._token.unlink(missing_ok=True)
                self._place.unlink(missing_ok=True)
            os.close(descriptor)

    def accept(self, host: str) -> None:
        """Accept, and wait for the outcome; raise TrialError when nobody waits, or when it was too late."""
        nobody = TrialError(
            f"no `apply` of {self.profile} is waiting on {'this machine' if host == 'local' else host}",
            hint="it was already confirmed or rolled back, or was another profile of that name; "
            "run `nearmetal apply` to apply this one",
        )
        try:
            descriptor = os.open(self._place, _FLAGS)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                raise nobody from error
            raise StoreError(f"cannot confirm, {self._place}: {error.strerror}") from error
        try:
            if _free(descriptor):
                raise nobody
            os.close(os.open(self._token, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            if not wait_until(lambda: _free(descriptor), _PATIENCE_S, _LOOK_S):
                raise TrialError(f"the apply of {self.profile} does not answer; look at its terminal")
            if os.pread(descriptor, len(_KEPT), 0) != _KEPT:
                raise TrialError(
                    f"{self.profile} was not kept: the apply ended before it was confirmed",
                    hint="its terminal says why; `nearmetal rollback` checks that every setting is restored",
                )
        except OSError as error:
            raise StoreError(f"cannot confirm, {self._place}: {error.strerror}") from error
        finally:
            os.close(descriptor)


def _free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
