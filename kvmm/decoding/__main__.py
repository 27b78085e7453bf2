"""``python -m kvmm.decoding DESCRIPTOR``: the parent of decoding processes; :mod:`kvmm.decoding.client` starts it."""

import sys

from kvmm.decoding.worker import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
