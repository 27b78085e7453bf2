"""Running benchmarks: prompts in batches, rows, results files, several processes."""
