"""The tests. The setting comes before any test imports PyTorch: idle threads leave the processor to
others, because several services share one machine here.
"""

import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
