"""The HTTP service: it loads a bundle with ONNX Runtime and answers `POST /route`."""
