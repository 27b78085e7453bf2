"""The codes and names of modalities; torch-free, because policies and the command line's help are."""

TEXT, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3
MODALITY_NAMES = ("text", "image", "video", "audio")
PADDING = -1  # in a modality map: a position that holds no token
