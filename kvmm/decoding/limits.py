"""What decoding one file may take. A file that takes more is refused with a line; nothing else comes to harm."""

MEMORY = 2**30  # bytes of private memory: 100 million pixels with alpha take 400 MB, WebP decodes them in twice as much
IMAGE_SECONDS = 20  # of CPU: 100 million pixels of PNG take 3
PAGE_SECONDS = 10  # of CPU, each page of a PDF: a page of print takes 0.1, a dense map 2
AUDIO_SECONDS = 60  # of CPU: half an hour takes 5
FILE_SECONDS = 120  # of CPU, all pages together
WALL = 6  # times the seconds of CPU: where others use the cores a file has a small share of them
PROCESSES = 4  # files that are decoded at the same time; others wait
STOP_SECONDS = 0.1  # between two looks at whether it should stop
