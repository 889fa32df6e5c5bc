"""From a module or a ``.pt2`` to a canonical program and its reference data, written once."""
