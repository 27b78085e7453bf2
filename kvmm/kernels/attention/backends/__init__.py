"""Ways to read packed segments: torch everywhere, C on a CPU, Triton on any GPU, CUDA C++ on NVIDIA's."""
