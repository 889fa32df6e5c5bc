"""Parts of the LiteRT target: the flatbuffer, conversion at fixed sizes, generalisation to ranges, the host runner."""
