"""The same dispatcher in virtual time, in worlds that decide the true rates.

document = rmixer.simulate("jobs.yaml", machine="machine.yaml", policies=["complementary"])

jobs.py        what is declared of jobs, and when they arrive
worlds/        the truth, and the law of rates side by side
engine.py      drives the dispatcher with virtual events; there is no clock
limits.py      what nothing can beat
attainable.py  what memory and the law of rates allow
compare.py     several policies on the same jobs, side by side
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """``rmixer.simulate`` is this package, and a function."""

    def __call__(self, jobs: Any, **options: Any) -> Any:
        """See `rmixer.simulate.verb.simulate`."""
        from rmixer.simulate.verb import simulate  # noqa: PLC0415 - imported when it is used

        return simulate(jobs, **options)


sys.modules[__name__].__class__ = _Callable
