"""What polykern costs: each operator, a call, an import, a first call."""
