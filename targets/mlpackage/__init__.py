"""Parts of the Core ML target: what goes into coremltools, and what is done with the package that comes out."""
