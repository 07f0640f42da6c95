"""The errors a person sees: one line that says what, where and how to mend it.

Dsv41Error
├── InputError      what the operator wrote or the machine offers cannot work; nothing was started   (exit 2)
├── GateError       a service runs but did not prove that it serves                                  (exit 1)
└── EngineDriftError     SGLang is not the version or shape this project was written for                  (exit 2)
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def first_line(error: Exception) -> str:
    """Return what an error of other people's code says in one line: its first, or its type where it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]


class Dsv41Error(Exception):
    """Base of every error that is reported as one line. `exit_code` is what the command line returns."""

    exit_code = EXIT_CHECK_FAILED

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        """Describe `problem`; `where` names the file, key or port; `remedy` says what to do, as an imperative."""
        super().__init__(problem)
        self.problem = problem
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        """Return the one line: `where: problem; remedy`."""
        line = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{line}; {self.remedy}" if self.remedy else line


class InputError(Dsv41Error):
    """The node file, an argument or the machine cannot work as it stands. Raised before anything is started."""

    exit_code = EXIT_BAD_INPUT


class GateError(Dsv41Error):
    """A check that stands between start and READY failed."""


class EngineDriftError(Dsv41Error):
    """A hook or flag this project relies on is missing or different in the installed engine."""

    exit_code = EXIT_BAD_INPUT
