"""The trained network as an ONNX graph and as a bundle."""
