"""The contract of the API: request and response schemas, error format, API keys."""
