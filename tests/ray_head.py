"""A private Ray in a process of its own, until standard input closes.

Ray forks when it starts; a test process has many threads by then, and a lock that one of them holds
at that moment is held in the child for ever.
"""

import json
import os
import sys
from tempfile import TemporaryDirectory

from tandem.orchestrator.workers import cluster

JOINING = (
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
    "RAY_USAGE_STATS_ENABLED",
)

if __name__ == "__main__":
    with TemporaryDirectory() as folder, cluster.running(cluster.LOCAL, 2, folder):
        import ray

        joining = {name: os.environ[name] for name in JOINING}
        print(json.dumps([ray.get_runtime_context().gcs_address, joining]), flush=True)
        sys.stdin.read()
