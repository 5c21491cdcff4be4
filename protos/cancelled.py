"""Who was cancelled: gRPC reports a call that was ended, or whose channel was closed, by this very
process as if the task that waits for it were cancelled.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether this very task is to end, rather than something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
