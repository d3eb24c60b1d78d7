"""Some tests fork, and OpenMP with several threads waits for ever in a forked process: it gets one.

Before torch and faiss are imported, which read the variable once.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
