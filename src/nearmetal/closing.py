"""Things that a `with` block closes. Standard library only."""

from abc import abstractmethod
from typing import Self


class Closing:
    """A context manager that closes itself at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind; calling twice does nothing more."""
