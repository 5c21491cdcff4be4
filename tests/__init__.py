"""The tests. Before any of them imports PyTorch: threads that wait for work leave the processor to
others, as several services run on one machine here.
"""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
