"""The contract of the API: what goes over the wire, how errors are told, which keys are valid."""
