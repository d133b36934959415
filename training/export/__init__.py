"""Exports the trained network as an ONNX graph and builds the bundle."""
