"""The ORT Web target's parts: the ONNX model and its runner."""
