"""The report of ``kvmm analyze``: which figures and tables it has, and its files."""
