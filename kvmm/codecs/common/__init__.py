"""What several codecs are made of."""
